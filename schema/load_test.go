package schema_test

import (
	"fmt"
	"io/fs"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/cmwa-project/cmwa/schema"
	"github.com/cmwa-project/cmwa/schema/position"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// must loads a source, and fails if it has problems.
func must(t *testing.T, src schema.Source) *schema.Config {
	t.Helper()
	config, problems := schema.Load(src)
	if len(problems) > 0 {
		t.Fatalf("unexpected problems:\n%v", problems)
	}
	return config
}

// mustBeOverlaid loads a source, and fails unless its only problems are count warnings about
// keys that variables override.
func mustBeOverlaid(t *testing.T, src schema.Source, count int) *schema.Config {
	t.Helper()
	config, problems := schema.Load(src)
	if config == nil || len(problems) != count {
		t.Fatalf("want warnings about %d overridden keys, got\n%v", count, problems)
	}
	for _, p := range problems {
		if p.Rule != position.RuleOverlaid || p.Severity != position.Warning {
			t.Error(p)
		}
	}
	return config
}

// unseen returns an option for a comparison, which then ignores fields that are not settings.
func unseen() cmp.Option {
	return cmp.Options{cmpopts.IgnoreUnexported(schema.Config{}), cmpopts.IgnoreFields(schema.Config{}, "Digest")}
}

func TestLoadDefaults(t *testing.T) {
	environ := map[string]string{"PULUMI_AGENT_TOKEN": "pul-0123"}
	got := must(t, schema.Source{Environ: environ, Executable: "/opt/cmwa/cmwa"})
	want := &schema.Config{
		Pools: []schema.Pool{{
			Name: "default", Token: secret.New("pul-0123"), ServiceURL: "https://api.pulumi.com",
			WorkingDirectory: "/opt/cmwa", DeployTarget: "docker", PullImage: true, JobLog: "service",
			EnabledWorkflowTypes: []string{"deployment", "insights_scan", "policy_evaluation"},
			PollingInterval:      time.Minute, JobStatusLoopInterval: 30 * time.Second,
			CancelGracePeriod: 5 * time.Minute, RequestTimeout: 30 * time.Second,
			RequestRetryCount: 2, RequestRetryWait: 20 * time.Second, RequestRetryMaxWait: 2 * time.Minute,
			CircuitBreakerFailures: 2, CircuitBreakerTimeout: 10 * time.Minute, MaxConcurrentWorkflows: 1,
			LeasedWork: "auto", MaxConcurrentLeased: 1,
			Docker: schema.Docker{PidsLimit: 4096},
			Kubernetes: schema.Kubernetes{
				ImagePullPolicy: "IfNotPresent", Handoff: "sealed", StartTimeout: 10 * time.Minute,
				ImagePullTimeout: 10 * time.Minute, QPS: 50,
			},
			ECS: schema.ECS{LaunchType: "FARGATE"},
		}},
		HTTPServerPort: 8080, HealthThreshold: 2 * time.Minute,
		LogLevel: "info", LogFormat: "text", ShutdownTimeout: time.Hour,
	}
	if diff := cmp.Diff(want, got, unseen()); diff != "" {
		t.Error(diff)
	}
}

const everyKey = `
token: pul-file
service_url: https://pulumi.example.com/api//
working_directory: /w
shared_volume_directory: /s
deploy_target: ecs
single_run: true
idle_timeout: 5m
pull_image: false
job_log: both
enabled_workflow_types: [policy_evaluation, deployment, deployment]
env_forward_allowlist: [A, B]
organization_name: acme
runner_pool_id: pool
token_expiration: 3600
polling_interval: 1s
polling_interval_override: true
job_status_loop_interval: 2s
cancel_grace_period: 90s
request_timeout: 3s
request_retry_count: 4
request_retry_wait: 5s
request_retry_max_wait: 6s
circuit_breaker_failures: 7
circuit_breaker_timeout: 8s
http_server_address: localhost
http_server_port: 9
health_threshold: 10s
syslog: true
log_level: debug
log_format: json
max_concurrent_workflows: 11
leased_work: always
max_concurrent_leased_workflows: 12
shutdown_timeout: 0s
strict: true
docker:
  network: n
  volumes: [c:/c, "/d:/d:ro"]
  extra_hosts: ["h:10.0.0.1", "v6:fe80::1"]
  memory: 1.5g
  cpus: 500m
  pids_limit: 100
  storage_limit: 20g
  allow_new_privileges: true
  user: "1000:1000"
  labels: [team=platform, "cost-centre=4 2"]
kubernetes:
  context: c
  namespace: jobs
  image: registry.example.com/cmwa:1
  image_pull_policy: Always
  service_account: worker
  cpu: 2
  memory: 4Gi
  ephemeral_storage: 5Gi
  cpu_limit: 2000m
  memory_limit: 6Gi
  ephemeral_storage_limit: 7Gi
  handoff: secret
  start_timeout: 12s
  image_pull_timeout: 11s
  keep_failed_pods: true
  qps: 200
pod_template: {metadata: {labels: {team: platform}}}
ecs:
  cluster: c
  subnets: [s]
  security_groups: [g]
  launch_type: EC2
  assign_public_ip: true
  task_definition_template_file: f
`

func everyValue() *schema.Config {
	return &schema.Config{
		Path: "agent.yaml",
		Pools: []schema.Pool{{
			Name: "default", Token: secret.New("pul-file"), ServiceURL: "https://pulumi.example.com/api",
			WorkingDirectory: "/w", SharedVolumeDirectory: "/s",
			DeployTarget: "ecs", SingleRun: true, IdleTimeout: 5 * time.Minute, JobLog: "both",
			EnabledWorkflowTypes: []string{"deployment", "policy_evaluation"},
			EnvForwardAllowlist:  []string{"A", "B"},
			OrganizationName:     "acme", RunnerPoolID: "pool", TokenExpiration: time.Hour,
			PollingInterval: time.Second, PollingOverride: true, JobStatusLoopInterval: 2 * time.Second,
			CancelGracePeriod: 90 * time.Second, RequestTimeout: 3 * time.Second,
			RequestRetryCount: 4, RequestRetryWait: 5 * time.Second, RequestRetryMaxWait: 6 * time.Second,
			CircuitBreakerFailures: 7, CircuitBreakerTimeout: 8 * time.Second, MaxConcurrentWorkflows: 11,
			LeasedWork: "always", MaxConcurrentLeased: 12,
			Docker: schema.Docker{
				Network: "n", Volumes: []string{"c:/c", "/d:/d:ro"},
				ExtraHosts: []string{"h:10.0.0.1", "v6:fe80::1"}, Memory: 1536 << 20, CPUs: 0.5,
				PidsLimit: 100, StorageLimit: 20 << 30, AllowNewPrivileges: true,
				User: "1000:1000", Labels: []string{"team=platform", "cost-centre=4 2"},
			},
			Kubernetes: schema.Kubernetes{
				Context: "c", Namespace: "jobs", Image: "registry.example.com/cmwa:1", ImagePullPolicy: "Always",
				ServiceAccount: "worker", CPU: "2", Memory: "4Gi", EphemeralStorage: "5Gi",
				CPULimit: "2000m", MemoryLimit: "6Gi", EphemeralStorageLimit: "7Gi", Handoff: "secret",
				StartTimeout: 12 * time.Second, ImagePullTimeout: 11 * time.Second, KeepFailedPods: true, QPS: 200,
			},
			ECS: schema.ECS{
				Cluster: "c", Subnets: []string{"s"}, SecurityGroups: []string{"g"}, LaunchType: "EC2",
				AssignPublicIP: true, TaskDefinitionTemplateFile: "f",
			},
			PodTemplate: map[string]any{"metadata": map[string]any{"labels": map[string]any{"team": "platform"}}},
		}},
		HTTPServerAddress: "localhost", HTTPServerPort: 9, HealthThreshold: 10 * time.Second,
		Syslog: true, LogLevel: "debug", LogFormat: "json", Strict: true,
	}
}

func TestLoadKeys(t *testing.T) {
	t.Run("reads every key of the file", func(t *testing.T) {
		got := must(t, source(everyKey))
		if diff := cmp.Diff(everyValue(), got, unseen()); diff != "" {
			t.Error(diff)
		}
	})

	t.Run("reads every variable", func(t *testing.T) {
		environ := map[string]string{
			"PULUMI_DEPLOY_OVERRIDE_IMAGE_REFERENCE": "registry.example.com/job:1",
			"PULUMI_ENV":                             "x", // known, but without effect on this configuration
		}
		for name, value := range map[string]string{
			"TOKEN": "pul-file\n", "SERVICE_URL": "https://pulumi.example.com/api//", "WORKING_DIRECTORY": "/w",
			"SHARED_VOLUME_DIRECTORY": "/s", "DEPLOY_TARGET": "ecs", "SINGLE_RUN": "true", "IDLE_TIMEOUT": "5m",
			"PULL_IMAGE": "0", "JOB_LOG": "both", "ENABLED_WORKFLOW_TYPES": "policy_evaluation, deployment,",
			"ENV_FORWARD_ALLOWLIST": " A\n  B\t", "ORGANIZATION_NAME": "acme", "RUNNER_POOL_ID": "pool",
			"TOKEN_EXPIRATION": "3600", "POLLING_INTERVAL": "1s", "POLLING_INTERVAL_OVERRIDE": "TRUE",
			"JOB_STATUS_LOOP_INTERVAL": "2s", "CANCEL_GRACE_PERIOD": "90s", "REQUEST_TIMEOUT": "3s",
			"REQUEST_RETRY_COUNT": "4", "REQUEST_RETRY_WAIT": "5s", "REQUEST_RETRY_MAX_WAIT": "6s",
			"CIRCUIT_BREAKER_FAILURES": "7", "CIRCUIT_BREAKER_TIMEOUT": "8s", "HTTP_SERVER_ADDRESS": "localhost",
			"HTTP_SERVER_PORT": "9", "HEALTH_THRESHOLD": "10s", "SYSLOG": "1", "LOG_LEVEL": "debug",
			"LOG_FORMAT": "json", "LEASED_WORK": "always", "MAX_CONCURRENT_LEASED_WORKFLOWS": "12",
			"MAX_CONCURRENT_WORKFLOWS": "11", "SHUTDOWN_TIMEOUT": "0s", "STRICT": "true",
			"DOCKER_NETWORK": "n", "DOCKER_VOLUMES": "c:/c /d:/d:ro", "DOCKER_EXTRA_HOSTS": "h:10.0.0.1 v6:fe80::1",
			"DOCKER_MEMORY": "1536m", "DOCKER_CPUS": "0.5", "DOCKER_USER": "1000:1000",
			"DOCKER_PIDS_LIMIT": "100", "DOCKER_STORAGE_LIMIT": "20g", "DOCKER_ALLOW_NEW_PRIVILEGES": "true",
			"DOCKER_LABELS": "team=platform cost-centre=42",
			"ECS_CLUSTER":   "c", "ECS_SUBNETS": "s", "ECS_SECURITY_GROUPS": "g", "ECS_LAUNCH_TYPE": "EC2",
			"ECS_ASSIGN_PUBLIC_IP": "true", "ECS_TASK_DEFINITION_TEMPLATE_FILE": "f",
			"KUBERNETES_CONTEXT": "c", "KUBERNETES_NAMESPACE": "jobs",
			"KUBERNETES_IMAGE": "registry.example.com/cmwa:1", "IMAGE": "registry.example.com/cmwa:0",
			"IMAGE_PULL_POLICY": "Always", "SERVICE_ACCOUNT_NAME": "worker", "NUM_CPUS": "2", "MEM_QUANTITY": "4",
			"KUBERNETES_EPHEMERAL_STORAGE": "5Gi", "KUBERNETES_CPU_LIMIT": "2000m", "KUBERNETES_MEMORY_LIMIT": "6Gi",
			"KUBERNETES_EPHEMERAL_STORAGE_LIMIT": "7Gi",
			"KUBERNETES_HANDOFF":                 "secret",
			"KUBERNETES_START_TIMEOUT":           "12s", "KUBERNETES_KEEP_FAILED_PODS": "true",
			"KUBERNETES_IMAGE_PULL_TIMEOUT": "11s", "KUBERNETES_QPS": "200",
			"DEBUG_POD": "true", "CONFIG": "x", // CONFIG has no effect here either
		} {
			environ["PULUMI_AGENT_"+name] = value
		}
		got := must(t, schema.Source{Environ: environ})
		want := everyValue()
		want.Path, want.OverrideImage, want.DebugPod = "", "registry.example.com/job:1", true
		want.Pools[0].PodTemplate = nil // a mapping has no variable
		want.Pools[0].Docker.Labels[1] = "cost-centre=42"
		if diff := cmp.Diff(want, got, unseen()); diff != "" {
			t.Error(diff)
		}
	})

	t.Run("every value has its origin", func(t *testing.T) {
		src := source("token: pul-a\nlog_level: warn\necs:\n  cluster: c\n")
		src.Environ = map[string]string{
			"PULUMI_AGENT_LOG_LEVEL":       "debug",
			"PULUMI_AGENT_ECS_LAUNCH_TYPE": "EC2",
			"PULUMI_AGENT_SYSLOG":          "",
		}
		config := mustBeOverlaid(t, src, 1)
		got := map[string]string{}
		for _, setting := range config.Settings() {
			if setting.Origin != (position.Origin{}) || setting.Key == "syslog" {
				got[setting.Key] = setting.Origin.String()
			}
		}
		want := map[string]string{
			"token": "agent.yaml:1", "log_level": "PULUMI_AGENT_LOG_LEVEL", "ecs.cluster": "agent.yaml:4",
			"ecs.launch_type": "PULUMI_AGENT_ECS_LAUNCH_TYPE", "syslog": "default",
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
		if ecs := config.Pools[0].ECS; ecs.Cluster != "c" || ecs.LaunchType != "EC2" {
			t.Errorf("got %+v, want a variable to change only one key of the mapping", ecs)
		}
	})
}

// setting is a key with two different values: one in the notation of the file, and one in
// the notation of the variable.
type setting struct{ key, file, variable string }

func drawSetting(t *rapid.T, f schema.Field) setting {
	s := setting{f.Key, "/file", "/variable"}
	switch {
	case f.Kind == schema.KindBool:
		s.file = fmt.Sprint(rapid.Bool().Draw(t, f.Key))
		s.variable = fmt.Sprint(s.file == "false")
	case f.Kind == schema.KindInt:
		n := rapid.IntRange(int(*f.Min), int(*f.Max)-1).Draw(t, f.Key)
		s.file, s.variable = fmt.Sprint(n), fmt.Sprint(n+1)
	case f.Kind == schema.KindDuration:
		low, high := int(f.Shortest/time.Second)+2, int(f.Longest/time.Second)-1
		n := rapid.IntRange(low, high).Draw(t, f.Key)
		s.file, s.variable = fmt.Sprintf("%ds", n), fmt.Sprintf("%ds", n+1)
	case f.Kind == schema.KindList && len(f.Choices) > 0:
		s.file, s.variable = "["+f.Choices[0]+"]", f.Choices[1]
	case f.Key == "docker.labels":
		s.file, s.variable = "[a=b]", "c=d"
	case f.Kind == schema.KindList:
		s.file, s.variable = "[x:/y]", "z:/y"
	case f.Key == "service_url":
		s.file, s.variable = "https://file", "https://variable"
	case f.Key == "kubernetes.cpu_limit": // not less than the request
		s.file, s.variable = "3", "1500m"
	case f.Kind == schema.KindQuantity:
		s.file, s.variable = "1.5", "500m"
	case strings.HasSuffix(f.Key, "_limit"):
		s.file, s.variable = "5Gi", "4Gi"
	case f.Key == "kubernetes.ephemeral_storage", f.Unit != "", f.Key == "docker.memory":
		s.file, s.variable = "4Gi", "3Gi"
	case len(f.Choices) > 0:
		s.file, s.variable = f.Choices[0], f.Choices[1]
	case strings.HasPrefix(f.Key, "kubernetes."), f.Key == "docker.user", f.Key == "http_server_address":
		s.file, s.variable = "file", "variable"
	}
	return s
}

// fileOf returns settings as the content of a file.
func fileOf(settings []setting) string {
	top, nested := "", map[string]string{}
	for _, s := range settings {
		if mapping, key, ok := strings.Cut(s.key, "."); ok {
			nested[mapping] += "  " + key + ": " + s.file + "\n"
		} else {
			top += s.key + ": " + s.file + "\n"
		}
	}
	for mapping, lines := range nested {
		top += mapping + ":\n" + lines
	}
	return top
}

// wantErrors checks that an agent with these variables and no file is refused, with these errors
// and without a warning.
func wantErrors(t *testing.T, environ map[string]string, want string) {
	t.Helper()
	config, problems := schema.Load(schema.Source{Environ: environ})
	if config != nil || len(problems.Warnings()) > 0 {
		t.Errorf("the configuration is %v, with the warnings %v", config, problems.Warnings())
	}
	if diff := cmp.Diff(want, problems.Errors().Error()); diff != "" {
		t.Error(diff)
	}
}

func TestLoadVariables(t *testing.T) {
	t.Run("override the file and change nothing else", func(t *testing.T) {
		fields := schema.Fields()
		rapid.Check(t, func(t *rapid.T) {
			variables := map[string]string{"PULUMI_AGENT_REQUEST_RETRY_MAX_WAIT": "24h"}
			var below, alone []setting
			for _, f := range fields {
				if f.Variable == "" || f.OnlyVariable || f.Key == "request_retry_max_wait" ||
					strings.HasSuffix(f.Key, "_file") ||
					!rapid.Bool().Draw(t, "with "+f.Key) {
					continue
				}
				s := drawSetting(t, f)
				below = append(below, s)
				if rapid.Bool().Draw(t, "variable for "+f.Key) {
					variables[f.Variable] = s.variable
					s.file = s.variable
					if f.Kind == schema.KindList {
						s.file = "[" + s.variable + "]"
					}
				}
				alone = append(alone, s)
			}
			if !strings.Contains(fileOf(alone), "token: ") {
				variables["PULUMI_AGENT_TOKEN"] = "pul-x"
			}
			src := source(fileOf(below))
			src.Environ = variables
			both, problems := schema.Load(src)
			if err := problems.Err(); err != nil {
				t.Fatalf("%v\n%s", err, src.Content)
			}
			src.Content = []byte(fileOf(alone))
			src.Environ = map[string]string{
				"PULUMI_AGENT_REQUEST_RETRY_MAX_WAIT": "24h",
				"PULUMI_AGENT_TOKEN":                  variables["PULUMI_AGENT_TOKEN"],
			}
			written, problems := schema.Load(src)
			if err := problems.Err(); err != nil {
				t.Fatalf("%v\n%s", err, src.Content)
			}
			if diff := cmp.Diff(written, both, unseen()); diff != "" {
				t.Fatalf("the same values give another configuration in variables than in the file:\n%s", diff)
			}
		})
	})

	t.Run("problems have the names of variables", func(t *testing.T) {
		for variable, test := range map[string]struct{ value, want string }{ // want follows the name
			"PULUMI_AGENT_HTTP_SERVER_PORT":    {"http", "must be a whole number from 0 to 65535"},
			"PULUMI_AGENT_REQUEST_RETRY_COUNT": {"1000", "must be a whole number from 0 to 100"},
			"PULUMI_AGENT_SYSLOG":              {"yes", "must be true or false"},
			"PULUMI_AGENT_POLLING_INTERVAL": {"30", "must be a duration such as 30s, 5m or 1h\n" +
				"  hint: write the unit after the number, such as s for seconds"},
			"PULUMI_AGENT_REQUEST_TIMEOUT":    {"1ms", "must be at least 100ms"},
			"PULUMI_AGENT_REQUEST_RETRY_WAIT": {"1h", "must not be longer than request_retry_max_wait, which is 2m"},
			"PULUMI_AGENT_DEPLOY_TARGET": {"Docker!", "must be one of docker, kubernetes, process\n" +
				"  hint: did you mean docker?"},
			"PULUMI_AGENT_ENABLED_WORKFLOW_TYPES": {"deployment policy_evaluation", "must be one of " +
				"deployment, insights_scan, policy_evaluation\n  hint: separate the entries by commas"},
			"PULUMI_AGENT_ENV_FORWARD_ALLOWLIST": {"A,B", "must be the name of one variable, without a value\n" +
				"  hint: separate the entries by spaces"},
			"PULUMI_AGENT_ECS_LAUNCH_TYPE": {"SPOT", "must be one of FARGATE, EC2"},
			"PULUMI_AGENT_SERVICE_URL": {"ftp://x", "must be a URL such as https://api.pulumi.com, " +
				"without user, query or fragment"},
			"PULUMI_AGENT_ORGANIZATION_NAME":         {"\xff", "must be a text without spaces"},
			"PULUMI_DEPLOY_OVERRIDE_IMAGE_REFERENCE": {"a b", "must be one image reference, without spaces"},
		} {
			t.Run(variable, func(t *testing.T) {
				wantErrors(t, map[string]string{"PULUMI_AGENT_TOKEN": "pul-x", variable: test.value},
					variable+": "+test.want)
			})
		}
		t.Run("PULUMI_AGENT_OIDC_TOKEN_FILE", func(t *testing.T) {
			wantErrors(t, map[string]string{"PULUMI_AGENT_OIDC_TOKEN_FILE": "/o"},
				`organization_name: is required with oidc_token_file
  hint: add it, or set PULUMI_AGENT_ORGANIZATION_NAME
runner_pool_id: is required with oidc_token_file
  hint: add it, or set PULUMI_AGENT_RUNNER_POOL_ID`)
		})
	})

	t.Run("without effect cause a warning", func(t *testing.T) {
		config, problems := schema.Load(schema.Source{Environ: map[string]string{
			"PULUMI_AGENT_TOKEN": "pul-x", "PULUMI_AGENT_POLING_INTERVAL": "1s", "PULUMI_AGENT_ECS_SUBNET": "x",
			"PULUMI_AGENT_XYZZY": "x", "PULUMI_AGENT_EMPTY": "", "PULUMI_AGENT_SERVICE_HOST": "10.0.0.1",
			"PULUMI_AGENT_PORT": "tcp://10.0.0.1:80", "PULUMI_AGENT_POOL_SERVICE_PORT_HTTP": "80",
			"PULUMI_AGENT_PORT_80_TCP_ADDR": "10.0.0.1", "PULUMI_DEPLOY_DEFAULT_IMAGE_REFERENCE": "x", "OTHER": "x",
		}})
		if config == nil {
			t.Fatalf("a warning is not an error:\n%v", problems)
		}
		want := `PULUMI_AGENT_ECS_SUBNET: no key has this variable
  hint: did you mean PULUMI_AGENT_ECS_SUBNETS?
PULUMI_AGENT_POLING_INTERVAL: no key has this variable
  hint: did you mean PULUMI_AGENT_POLLING_INTERVAL?
PULUMI_AGENT_XYZZY: no key has this variable
PULUMI_DEPLOY_DEFAULT_IMAGE_REFERENCE: has no effect on an agent; it belongs to the service
  hint: to replace the image of every job, set PULUMI_DEPLOY_OVERRIDE_IMAGE_REFERENCE`
		if diff := cmp.Diff(want, problems.Warnings().Error()); diff != "" {
			t.Error(diff)
		}
	})

	t.Run("that were removed are refused", func(t *testing.T) {
		wantErrors(t, map[string]string{
			"PULUMI_AGENT_TOKEN": "pul-x", "PULUMI_AGENT_KUBERNETES_RUNNER": "copy",
			"PULUMI_AGENT_KUBERNETES_HANDOFF": "configmap",
		}, `PULUMI_AGENT_KUBERNETES_HANDOFF: must be one of sealed, secret
  hint: write secret, or sealed, the default: many users can read a ConfigMap
PULUMI_AGENT_KUBERNETES_RUNNER: no key has this variable
  hint: unset it: the runner is always copied from kubernetes.image`)
	})

	t.Run("choose the token", func(t *testing.T) {
		tokens := files(map[string]string{"a": " pul-a\n", "b": "pul-b"})
		for name, test := range map[string]struct {
			file, variable, value string
			want                  string
			hidden                int // number of keys of the file that a variable overrides
		}{
			"file":                               {"token: pul-f", "", "", "pul-f", 0},
			"token file":                         {"token_file: a", "", "", "pul-a", 0},
			"variable over file":                 {"token: pul-f", "PULUMI_AGENT_TOKEN", "pul-v", "pul-v", 1},
			"variable over token file":           {"token_file: a", "PULUMI_AGENT_TOKEN", "pul-v", "pul-v", 1},
			"token file of a variable over file": {"token: pul-f", "PULUMI_AGENT_TOKEN_FILE", "b", "pul-b", 1},
			"token file over token file":         {"token_file: a", "PULUMI_AGENT_TOKEN_FILE", "b", "pul-b", 1},
			"empty variable":                     {"token_file: a", "PULUMI_AGENT_TOKEN", " ", "pul-a", 0},
			"exchange": {"{oidc_token_file: /o, organization_name: acme, runner_pool_id: p}",
				"", "", "", 0},
		} {
			t.Run(name, func(t *testing.T) {
				src := source(test.file)
				src.Environ, src.ReadFile = map[string]string{test.variable: test.value}, tokens
				if got := mustBeOverlaid(t, src, test.hidden).Pools[0].Token.Reveal(); got != test.want {
					t.Errorf("the token is %q, want %q", got, test.want)
				}
			})
		}
	})
}

func TestEvaluateDigest(t *testing.T) {
	t.Run("changes with every input", func(t *testing.T) {
		digest := func(file, token string, environ map[string]string) string {
			src := source(file)
			src.Environ, src.ReadFile = environ, files(map[string]string{"t": token})
			config := must(t, src)
			if !reflect.DeepEqual(config.Files, []string{"t"}) {
				t.Errorf("the configuration names the files %v, want t", config.Files)
			}
			return config.Digest
		}
		one := digest("token_file: t", "pul-a", nil)
		unused := map[string]string{"PATH": "/bin", "PULUMI_AGENT_SYSLOG": ""}
		if digest("token_file: t", "pul-a", unused) != one {
			t.Error("a variable without effect changes the digest")
		}
		for name, other := range map[string]string{
			"file":       digest("token_file: t\nsyslog: true", "pul-a", nil),
			"token file": digest("token_file: t", "pul-b", nil),
			"variable":   digest("token_file: t", "pul-a", map[string]string{"PULUMI_AGENT_SYSLOG": "true"}),
		} {
			if other == one {
				t.Errorf("a change of the %s does not change the digest", name)
			}
		}
	})

	t.Run("depends on which file of a pool exists", func(t *testing.T) {
		const keys = "organization_name: o, runner_pool_id: 11111111-1111-1111-1111-111111111111"
		digest := func(there map[string]string, name string, fault error) string {
			src := source("pools:\n- {name: p, oidc_token_file: a, " + keys + "}\n" +
				"- {name: q, oidc_token_file: b, " + keys + "}\n")
			read := files(there)
			src.ReadFile = func(file string) ([]byte, error) {
				if file == name {
					return nil, fault
				}
				return read(file)
			}
			return schema.Evaluate(src).Digest
		}
		// Content like this would be ambiguous if the digest did not have the length of each file.
		const record = "\x00\"pools.1.oidc_token_file\"\x00read\x00"
		seen := map[string]string{}
		for name, one := range map[string]string{
			"neither":              digest(nil, "", nil),
			"the first":            digest(map[string]string{"a": "eyJ"}, "", nil),
			"the second":           digest(map[string]string{"b": "eyJ"}, "", nil),
			"both":                 digest(map[string]string{"a": "eyJ", "b": "eyJ"}, "", nil),
			"an empty first":       digest(map[string]string{"a": ""}, "", nil),
			"an empty second":      digest(map[string]string{"b": ""}, "", nil),
			"a forbidden first":    digest(nil, "a", fs.ErrPermission),
			"a forbidden second":   digest(nil, "b", fs.ErrPermission),
			"an unreadable first":  digest(nil, "a", fs.ErrInvalid),
			"an unreadable second": digest(nil, "b", fs.ErrInvalid),
			"a record, first":      digest(map[string]string{"a": record, "b": ""}, "", nil),
			"a record, second":     digest(map[string]string{"a": "", "b": record}, "", nil),
			"two empty ones":       digest(map[string]string{"a": "", "b": ""}, "", nil),
		} {
			if other, ok := seen[one]; ok {
				t.Errorf("%s and %s have the same digest", name, other)
			}
			seen[one] = name
		}
		first, second := digest(map[string]string{"a": "eyJ"}, "", nil), digest(map[string]string{"a": "eyJ"}, "", nil)
		if first != second {
			t.Error("the same files have different digests")
		}
	})

	t.Run("depends on every named file, also a missing one", func(t *testing.T) {
		for key, others := range map[string]string{
			"token_file":        "",
			"ca_file":           "token: pul-x",
			"oidc_token_file":   "organization_name: o\nrunner_pool_id: 11111111-1111-1111-1111-111111111111",
			"pod_template_file": "token: pul-x\ndeploy_target: kubernetes",
		} {
			seen := map[string]string{}
			for name, fault := range map[string]error{"missing": fs.ErrNotExist, "forbidden": fs.ErrPermission,
				"unreadable": fs.ErrInvalid, "empty": nil} {
				src := source(key + ": f\n" + others + "\n")
				src.ReadFile = func(string) ([]byte, error) { return nil, fault }
				one := schema.Evaluate(src).Digest
				if other, ok := seen[one]; ok {
					t.Errorf("%s: %s and %s have the same digest", key, name, other)
				}
				seen[one] = name
			}
		}
	})
}

func TestLoadYAML(t *testing.T) {
	t.Run("reads every notation of a file", func(t *testing.T) {
		for name, file := range map[string]string{
			"byte order mark": "\ufefftoken: pul-x\nlog_level: debug\n",
			"other line ends": "token: pul-x\r\nlog_level: debug\r\n",
			"document marks":  "---\ntoken: pul-x\nlog_level: debug\n...\n",
			"JSON":            `{"token": "pul-x", "log_level": "debug"}`,
			"aliases":         "token: pul-x\norganization_name: &d debug\nlog_level: *d\n",
			"legacy version":  "version: [1, {a: b}]\ntoken: pul-x\nlog_level: debug\n",
		} {
			t.Run(name, func(t *testing.T) {
				got := must(t, source(file))
				if got.LogLevel != "debug" || got.Pools[0].Token.Reveal() != "pul-x" {
					t.Errorf("read %+v", got)
				}
			})
		}
	})

	t.Run("explicit keys override merge keys", func(t *testing.T) {
		config, problems := schema.Load(
			source("token: pul-x\nbase: &base {network: a, volumes: [a:/a]}\ndocker:\n  network: b\n  <<: *base\n"),
		)
		if want := "agent.yaml:2:1: base: unknown key"; problems.Error() != want {
			t.Errorf("problems %q, want %q", problems.Error(), want)
		}
		if want := (schema.Docker{Network: "b", Volumes: []string{"a:/a"}, PidsLimit: 4096}); config == nil ||
			!reflect.DeepEqual(config.Pools[0].Docker, want) {
			t.Errorf("read %+v, want %+v", config, want)
		}
	})
}

func TestLoadOldNames(t *testing.T) {
	src := source("token: pul-x\nworkflow_runners_directory: $PWD/bin\n")
	src.Path, src.Environ = "/etc/pulumi-deployment-agent.yaml", map[string]string{"PWD": "/srv"}
	config, problems := schema.Load(src)
	if config == nil || config.Pools[0].WorkingDirectory != "/srv/bin" {
		t.Errorf("read %+v", config)
	}
	want := `/etc/pulumi-deployment-agent.yaml: the file has an old name
  hint: rename it to pulumi-workflow-agent.yaml
/etc/pulumi-deployment-agent.yaml:2:1: workflow_runners_directory: an old name
  hint: write working_directory`
	if diff := cmp.Diff(want, problems.Error()); diff != "" {
		t.Error(diff)
	}
}

func TestLoadExamples(t *testing.T) {
	for _, file := range corpus(t, 5, "../examples/*.yaml") {
		must(t, schema.Source{Path: file.path, Content: []byte(file.content), ReadFile: files(map[string]string{
			"/etc/cmwa/token": "pul-x\n", "/var/run/secrets/cmwa/token": "pul-x", "/etc/cmwa/ca.pem": newCertificate(t),
			"/etc/cmwa/production.token": "pul-p", "/etc/cmwa/teams.token": "pul-t", "/etc/cmwa/inside.token": "pul-i",
		})})
	}
}

func TestLoadElsewhere(t *testing.T) {
	file := "token_file: a\nca_file: b\npod_template_file: c\n"
	elsewhere := schema.Source{Path: "agent.yaml", Content: []byte(file), ReadFile: files(nil), Elsewhere: true}
	config, problems := schema.Load(elsewhere)
	if config == nil || len(problems) != 1 || problems[0].Severity != position.Warning ||
		problems[0].Path != "pod_template_file" {
		t.Errorf("on another machine: %v", problems)
	}
	here := elsewhere
	here.Elsewhere = false
	config, problems = schema.Load(here)
	if config != nil || len(problems.Errors()) != 3 {
		t.Errorf("on the agent's machine: %v", problems)
	}
	if strict := schema.Strict(problems); len(strict) != 1 || len(strict.Errors()) > 0 {
		t.Errorf("Strict returns %v, want one warning", strict)
	}
	elsewhere.Content = []byte("pools: [{name: a}]")
	config, problems = schema.Load(elsewhere)
	if config != nil || len(problems.Errors()) != 1 {
		t.Errorf("got %v for a named pool without a token, want one error", problems)
	}
}

func TestLoadColumns(t *testing.T) {
	for file, want := range map[string]int{
		"docker: {labels: [\"é=日本\"], network: [x]}":         37,
		"docker: {labels: [\"é=日本\"], network: x}\ue000\x00": 40,
		"日本: é: 1": 6,
	} {
		_, problems := schema.Load(source(file))
		if columns := fmt.Sprint(problems); !strings.Contains(columns, fmt.Sprintf("agent.yaml:1:%d: ", want)) {
			t.Errorf("%q has no problem in column %d:\n%v", file, want, problems)
		}
	}
}
