package schema

import (
	"bytes"
	"strings"
)

//go:generate go test -run ^TestTheReferenceIsThatOfTheSchema$ -update .

// referenceWidth is the longest line of the reference, in columns.
const referenceWidth = 100

// Reference returns a configuration file in which every key stands with its
// documentation, commented out, at its default or, where that is nothing, with an
// example. It is the manual.
func Reference() ([]byte, error) {
	fields, err := Fields()
	if err != nil {
		return nil, err
	}
	r := &reference{fields: fields}
	r.introduction()
	r.heading("What a pool may set for itself. Here it holds for all pools that do not.")
	for _, f := range fields {
		if f.Pool && f.plainTop() {
			r.key(f)
		}
	}
	r.heading("Pools.")
	for _, f := range fields {
		if f.Kind == KindMappings {
			r.key(f)
		}
	}
	r.heading("What holds for the whole agent.")
	for _, f := range fields {
		if !f.Pool && f.plainTop() && f.Kind != KindMappings {
			r.key(f)
		}
	}
	r.heading("What only variables say.")
	for _, f := range fields {
		if f.OnlyVariable {
			r.line("")
			r.prose("", f.Variable+": "+lowerFirst(f.Doc)+" ["+f.Takes()+"]")
		}
	}
	r.heading("Old names and keys without effect. cmwa vet warns of those that should be changed.")
	for _, f := range fields {
		switch {
		case f.Old != "":
			r.line("")
			r.prose("", f.Key+": an old name of "+f.Old+". "+f.Doc)
		case f.Unused != "":
			r.line("")
			r.prose("", f.Key+": without effect, because "+f.Unused+". "+f.Doc)
		case f.Ignored:
			r.line("")
			r.prose("", f.Key+": without effect. "+f.Doc)
		}
	}
	return r.Bytes(), nil
}

// introduction writes how to read the reference.
func (r *reference) introduction() {
	r.prose("", "Every key of "+FileName+
		", and the manual of it. A key that is commented out stands here at its default, or with an example where "+
		"the default is to be unset. To set one, remove the # before it, and no more: what follows # and a blank is "+
		"prose. cmwa explain KEY tells the same, and cmwa vet checks a file.")
	r.line("")
	r.prose("", "In brackets stands what a key takes, its default, its variable, and when a change takes effect in a "+
		"running agent:")
	for _, c := range classes() {
		for _, line := range beside(string(c), c.Meaning(), classColumn, referenceWidth-len("#   ")) {
			r.line("#   " + line)
		}
	}
	r.prose("", "A variable that is set and not empty wins over the file, and stays as it was when the agent "+
		"started. Blanks around it do not count. Units of a duration are h, m, s and ms, as in 1h30m.")
	r.line("")
	r.prose("", "This file is generated from schema/schema.cue by go generate ./schema.")
}

// reference is the file as far as it is written.
type reference struct {
	bytes.Buffer
	fields []Field
}

func (r *reference) line(text string) { r.WriteString(strings.TrimRight(text, " ") + "\n") }

// prose writes a paragraph as comment lines that begin with a prefix.
func (r *reference) prose(prefix, text string) {
	for _, line := range wrap(text, referenceWidth-len(prefix)-2) {
		r.line(prefix + "# " + line)
	}
}

func (r *reference) heading(text string) {
	r.line("")
	r.line("# " + strings.Repeat("-", 40))
	r.prose("", text)
}

func (r *reference) key(f Field) {
	r.line("")
	r.prose("", f.Doc)
	if f.Kind == KindMapping {
		r.line("#" + f.Key + ":")
		for _, inner := range r.fields {
			if strings.HasPrefix(inner.Key, f.Key+".") {
				r.prose("#  ", inner.Doc)
				r.prose("#  ", inner.facts())
				r.setting("#  ", strings.TrimPrefix(inner.Key, f.Key+"."), inner)
			}
		}
		return
	}
	r.prose("", f.facts())
	for _, inner := range r.fields {
		if key, ok := strings.CutPrefix(inner.Key, f.Key+"."); ok {
			r.prose("", key+": "+lowerFirst(inner.Doc)+" "+inner.facts())
		}
	}
	if f.Key == "token_file" {
		r.prose("", "It is set here because a configuration without any credentials is none.")
		r.setting("", f.Key, f)
		return
	}
	r.setting("#", f.Key, f)
}

// setting writes the key itself after a prefix that may comment it out.
func (r *reference) setting(prefix, key string, f Field) {
	value := defaultOf(f)
	if usual := f.Usually(); usual == "" || usual == "unset" || usual == "none" {
		value = examples()[f.Key]
	}
	r.WriteString(entry(prefix, key, value))
}

// Example returns lines of YAML that set the key, and end in a line feed. It is
// empty for what no file sets.
func (f Field) Example() string {
	if f.OnlyVariable || f.Old != "" || f.Unused != "" || f.Ignored {
		return ""
	}
	value := examples()[f.Key]
	if value == "" {
		value = defaultOf(f)
	}
	key, indent := f.Key, ""
	outer, inner, nested := strings.Cut(f.Key, ".")
	switch {
	case f.Kind == KindMapping:
		return ""
	case outer == "pools" && nested:
		return "pools:\n  - " + inner + ": " + value + "\n"
	case nested:
		key, indent = inner, "  "
	}
	var b strings.Builder
	if nested {
		b.WriteString(outer + ":\n")
	}
	b.WriteString(entry(indent, key, value))
	return b.String()
}

// entry writes a key and its value, which may be lines that each end in a line
// feed, with a prefix before all lines.
func entry(prefix, key, value string) string {
	if !strings.Contains(value, "\n") {
		return prefix + key + ": " + value + "\n"
	}
	var b strings.Builder
	b.WriteString(prefix + key + ":\n")
	for line := range strings.Lines(value) {
		b.WriteString(prefix + "  " + line)
	}
	return b.String()
}

// examples returns a value for each key whose default shows too little.
func examples() map[string]string {
	return map[string]string{
		"token":                             "pul-...",
		"token_file":                        "/etc/cmwa/token",
		"service_url":                       "https://pulumi.example.com",
		"ca_file":                           "/etc/cmwa/ca.pem",
		"working_directory":                 "/opt/cmwa",
		"shared_volume_directory":           "/srv/cmwa",
		"deploy_target":                     "kubernetes",
		"single_run":                        "true",
		"pull_image":                        "false",
		"enabled_workflow_types":            "[deployment]",
		"env_forward_allowlist":             "[AWS_PROFILE, AWS_REGION]",
		"oidc_token_file":                   "/var/run/secrets/oidc/token",
		"organization_name":                 "acme",
		"runner_pool_id":                    "3fa85f64-5717-4562-b3fc-2c963f66afa6",
		"token_expiration":                  "2h",
		"polling_interval":                  "30s",
		"polling_interval_override":         "true",
		"job_status_loop_interval":          "10s",
		"request_timeout":                   "1m",
		"request_retry_count":               "4",
		"request_retry_wait":                "5s",
		"request_retry_max_wait":            "5m",
		"circuit_breaker_failures":          "3",
		"circuit_breaker_timeout":           "5m",
		"max_concurrent_workflows":          "4",
		"docker.network":                    "builds",
		"docker.volumes":                    `["cache:/root/.cache", "/srv/ca:/ca:ro"]`,
		"docker.extra_hosts":                `["git.internal:10.0.0.5"]`,
		"docker.memory":                     "4Gi",
		"docker.cpus":                       "1.5",
		"docker.user":                       `"1000:1000"`,
		"docker.labels":                     "[team=platform]",
		"kubernetes.context":                "prod",
		"kubernetes.namespace":              "builds",
		"kubernetes.image":                  "registry.example.com/cmwa:1.2.3",
		"kubernetes.image_pull_policy":      "Always",
		"kubernetes.service_account":        "workflow-runner",
		"kubernetes.cpu":                    "500m",
		"kubernetes.memory":                 "4Gi",
		"kubernetes.runner":                 "image",
		"kubernetes.handoff":                "secret",
		"kubernetes.start_timeout":          "20m",
		"kubernetes.keep_failed_pods":       "true",
		"pod_template":                      "spec:\n  nodeSelector:\n    kubernetes.io/arch: arm64\n",
		"pod_template_file":                 "/etc/cmwa/worker-pod.yaml",
		"ecs.cluster":                       "builds",
		"ecs.subnets":                       "[subnet-0a1b2c, subnet-3d4e5f]",
		"ecs.security_groups":               "[sg-0a1b2c]",
		"ecs.launch_type":                   "EC2",
		"ecs.assign_public_ip":              "true",
		"ecs.task_definition_template_file": "/etc/cmwa/task.json",
		"pools":                             "- name: linux\n  token_file: /etc/cmwa/linux\n- name: arm\n  token_file: /etc/cmwa/arm\n  deploy_target: kubernetes\n",
		"pools.name":                        "linux",
		"http_server_address":               "127.0.0.1",
		"http_server_port":                  "9090",
		"health_threshold":                  "5m",
		"syslog":                            "true",
		"log_level":                         "debug",
		"log_format":                        "json",
		"shutdown_timeout":                  "15m",
		"strict":                            "true",
		"state_directory":                   "/var/lib/cmwa",
	}
}
