package schema

import (
	"bytes"
	"cmp"
	"strings"

	"github.com/cmwa-project/cmwa/schema/printable"
)

//go:generate go test -run ^TestReferenceFile$ -update .

// referenceWidth is the longest line of the reference, in columns.
const referenceWidth = 100

// Reference returns a configuration file with every key and its documentation. All keys
// except token_file are commented out. Each key has its default, or an example if it has no
// default.
func Reference() []byte {
	r := &reference{}
	r.introduction()
	r.heading("Keys of a pool. At the top level they apply to all pools that do not set them.")
	for _, f := range fieldTable {
		if f.Pool && f.plainTop() {
			r.key(f)
		}
	}
	r.heading("Pools.")
	for _, f := range fieldTable {
		if f.Kind == KindMappings {
			r.key(f)
		}
	}
	r.heading("Keys of the agent.")
	for _, f := range fieldTable {
		if !f.Pool && f.plainTop() && f.Kind != KindMappings {
			r.key(f)
		}
	}
	r.heading("Variables without a key.")
	for _, f := range fieldTable {
		if f.OnlyVariable {
			r.paragraph(f.Variable + ": " + lowerFirst(f.Doc) + " [" + f.ValueText() + "]")
		}
	}
	r.heading("Old names, and keys without effect. cmwa vet warns about those that should be changed.")
	for _, f := range fieldTable {
		switch {
		case f.Old != "":
			r.paragraph(f.Key + ": an old name of " + f.Old + ". " + f.Doc)
		case f.Unused != "":
			r.paragraph(f.Key + ": has no effect, because " + f.Unused + ". " + f.Doc)
		case f.Ignored:
			r.paragraph(f.Key + ": has no effect. " + f.Doc)
		}
	}
	return r.Bytes()
}

func (r *reference) introduction() {
	r.prose("", "Reference of "+FileName+
		": every key with its documentation. All keys except token_file are commented out. Each has its default, or "+
		"an example if it is unset by default. To set a key, remove the # in the first column of its line. For a key "+
		"in a block such as docker, also remove the # of the first line of the block. Keep the # of comments. "+
		"cmwa explain KEY shows the documentation of one key, and cmwa vet checks a file.")
	r.paragraph("The brackets contain the values that a key accepts, its default, its variable, and when a change " +
		"takes effect in a running agent:")
	for _, c := range classes {
		for _, line := range columnText(c.String(), c.Meaning(), classColumn, referenceWidth-len("#   ")) {
			r.line("#   " + line)
		}
	}
	r.prose("", "A variable that is not empty overrides the file. It keeps the value that it has when the agent "+
		"starts. Spaces around the value are ignored. Units of a duration are h, m, s, ms, us and ns, as in 1h30m.")
	r.paragraph("A relative path in the file starts at the directory of the file, and one in a variable at the " +
		"working directory of the agent. ~ and $HOME are not expanded.")
	r.paragraph("This file is generated from schema/schema.cue by make reference.")
}

// reference is the part of the file that has been written so far.
type reference struct{ bytes.Buffer }

func (r *reference) line(text string) { r.WriteString(strings.TrimRight(text, " ") + "\n") }

// prose writes a paragraph as comment lines that begin with a prefix.
func (r *reference) prose(prefix, text string) {
	for _, line := range printable.Wrap(text, prefix+"# ", prefix+"# ", referenceWidth) {
		r.line(line)
	}
}

// paragraph writes an empty line, and a text as comment lines.
func (r *reference) paragraph(text string) {
	r.line("")
	r.prose("", text)
}

func (r *reference) heading(text string) {
	r.line("")
	r.line("# " + strings.Repeat("-", 40))
	r.prose("", text)
}

func (r *reference) key(f Field) {
	r.paragraph(f.Doc)
	if f.Kind == KindMapping {
		r.line("#" + f.Key + ":")
		for _, inner := range fieldTable {
			if key, ok := strings.CutPrefix(inner.Key, f.Key+"."); ok {
				r.prose("#  ", inner.Doc)
				r.prose("#  ", inner.facts())
				r.setting("#  ", key, inner)
			}
		}
		return
	}
	r.prose("", f.facts())
	for _, inner := range fieldTable {
		if key, ok := strings.CutPrefix(inner.Key, f.Key+"."); ok {
			r.prose("", key+": "+lowerFirst(inner.Doc)+" "+inner.facts())
		}
	}
	if f.Key == "token_file" {
		r.prose("", "It is set here because a configuration needs credentials.")
		r.setting("", f.Key, f)
		return
	}
	r.setting("#", f.Key, f)
}

// setting writes the key with its value, after a prefix that may comment it out.
func (r *reference) setting(prefix, key string, f Field) {
	value := defaultOf(f)
	if text := f.DefaultText(); text == "" || text == "unset" || text == "none" {
		value = examples()[f.Key]
	}
	r.WriteString(entry(prefix, key, value))
}

// Example returns lines of YAML that set the key. The last line ends in a line feed. Example
// returns "" for a field that no file should set, and for a mapping, because the keys of the
// mapping have their own examples.
func (f Field) Example() string {
	if f.OnlyVariable || !f.current() || f.Kind == KindMapping {
		return ""
	}
	value := cmp.Or(examples()[f.Key], examples()[strings.TrimPrefix(f.Key, poolsPrefix)], defaultOf(f))

	var b strings.Builder
	path, indent := f.Key, ""
	if own, ok := strings.CutPrefix(path, poolsPrefix); ok {
		if own == "name" {
			return "pools:\n  - name: " + value + "\n"
		}
		b.WriteString("pools:\n  - name: linux\n")
		path, indent = own, "    "
	}
	if outer, inner, nested := strings.Cut(path, "."); nested {
		b.WriteString(indent + outer + ":\n")
		path, indent = inner, indent+"  "
	}
	b.WriteString(entry(indent, path, value))
	return b.String()
}

// entry returns a key and its value with a prefix before all lines. The value may have
// several lines, each of which ends in a line feed.
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

// examples returns example values by key. [Field.Example] uses the default of a key that is
// not in this map.
func examples() map[string]string {
	return map[string]string{
		"token":                              "pul-...",
		"token_file":                         "/etc/cmwa/token",
		"service_url":                        "https://pulumi.example.com",
		"ca_file":                            "/etc/cmwa/ca.pem",
		"working_directory":                  "/opt/cmwa",
		"shared_volume_directory":            "/srv/cmwa",
		"deploy_target":                      "kubernetes",
		"single_run":                         "true",
		"idle_timeout":                       "5m",
		"pull_image":                         "false",
		"job_log":                            "both",
		"enabled_workflow_types":             "[deployment]",
		"env_forward_allowlist":              "[AWS_PROFILE, AWS_REGION]",
		"oidc_token_file":                    "/var/run/secrets/oidc/token",
		"organization_name":                  "acme",
		"runner_pool_id":                     "3fa85f64-5717-4562-b3fc-2c963f66afa6",
		"token_expiration":                   "2h",
		"polling_interval":                   "30s",
		"polling_interval_override":          "true",
		"job_status_loop_interval":           "10s",
		"cancel_grace_period":                "15m",
		"request_timeout":                    "1m",
		"request_retry_count":                "4",
		"request_retry_wait":                 "5s",
		"request_retry_max_wait":             "5m",
		"circuit_breaker_failures":           "3",
		"circuit_breaker_timeout":            "5m",
		"max_concurrent_workflows":           "4",
		"leased_work":                        "never",
		"max_concurrent_leased_workflows":    "2",
		"docker.network":                     "builds",
		"docker.volumes":                     `["cache:/root/.cache", "/srv/ca:/ca:ro"]`,
		"docker.extra_hosts":                 `["git.internal:10.0.0.5"]`,
		"docker.memory":                      "4Gi",
		"docker.cpus":                        "1.5",
		"docker.storage_limit":               "20Gi",
		"docker.user":                        `"1000:1000"`,
		"docker.labels":                      "[team=platform]",
		"kubernetes.context":                 "prod",
		"kubernetes.namespace":               "builds",
		"kubernetes.image":                   "registry.example.com/cmwa:1.2.3",
		"kubernetes.image_pull_policy":       "Always",
		"kubernetes.service_account":         "workflow-runner",
		"kubernetes.cpu":                     "500m",
		"kubernetes.memory":                  "4Gi",
		"kubernetes.ephemeral_storage":       "4Gi",
		"kubernetes.cpu_limit":               "2",
		"kubernetes.memory_limit":            "8Gi",
		"kubernetes.ephemeral_storage_limit": "10Gi",
		"kubernetes.handoff":                 "secret",
		"kubernetes.start_timeout":           "20m",
		"kubernetes.image_pull_timeout":      "5m",
		"kubernetes.keep_failed_pods":        "true",
		"kubernetes.qps":                     "200",
		"pod_template":                       "spec:\n  nodeSelector:\n    kubernetes.io/arch: arm64\n",
		"pod_template_rules": "- match: {project: web-*, stack: production}\n  patch:\n    spec:\n" +
			"      nodeSelector: {pool: large}\n",
		"pod_template_file":                 "/etc/cmwa/worker-pod.yaml",
		"ecs.cluster":                       "builds",
		"ecs.subnets":                       "[subnet-0a1b2c, subnet-3d4e5f]",
		"ecs.security_groups":               "[sg-0a1b2c]",
		"ecs.launch_type":                   "EC2",
		"ecs.assign_public_ip":              "true",
		"ecs.task_definition_template_file": "/etc/cmwa/task.json",
		"pools": "- name: linux\n  token_file: /etc/cmwa/linux\n" +
			"- name: arm\n  token_file: /etc/cmwa/arm\n  deploy_target: kubernetes\n",
		"pools.name":          "linux",
		"http_server_address": "127.0.0.1",
		"http_server_port":    "9090",
		"health_threshold":    "5m",
		"syslog":              "true",
		"log_level":           "debug",
		"log_format":          "json",
		"shutdown_timeout":    "15m",
		"strict":              "true",
		"state_directory":     "/var/lib/cmwa",
	}
}
