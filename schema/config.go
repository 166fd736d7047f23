package schema

import (
	"maps"
	"slices"
	"time"

	"github.com/cmwa-project/cmwa/secret"
)

// Config is a configuration in force: the file, the environment over it, and
// defaults for the rest. It is made by [Load] and not changed afterwards; readers
// may share it. Printing it shows no secret.
type Config struct {
	Path   string   // of the file; empty if there is none
	Digest string   // of everything that it was made from, in hexadecimal
	Files  []string // that the file names and that were read for it

	Token                  secret.String // from token or token_file; empty with OIDC
	TokenFile              string
	ServiceURL             string // without a slash at its end
	WorkingDirectory       string // never empty if the executable is known
	SharedVolumeDirectory  string
	DeployTarget           string
	SingleRun              bool
	PullImage              bool
	EnabledWorkflowTypes   []string // at least one, each once
	EnvForwardAllowlist    []string
	OIDCTokenFile          string // empty is no OIDC
	OrganizationName       string
	RunnerPoolID           string
	TokenExpiration        time.Duration // 0 lets the service decide
	PollingInterval        time.Duration
	PollingOverride        bool
	JobStatusLoopInterval  time.Duration
	RequestTimeout         time.Duration
	RequestRetryCount      int
	RequestRetryWait       time.Duration
	RequestRetryMaxWait    time.Duration
	CircuitBreakerFailures int
	CircuitBreakerTimeout  time.Duration
	HTTPServerPort         int           // 0 is no HTTP server
	HealthThreshold        time.Duration // never 0
	Syslog                 bool
	LogLevel               string
	LogFormat              string
	MaxConcurrentWorkflows int
	ShutdownTimeout        time.Duration
	Docker                 Docker
	ECS                    ECS

	OverrideImage string // in place of the image that the service asks for; only a variable sets it

	origins map[string]Origin
}

// Docker is how containers are made.
type Docker struct {
	Network    string
	Volumes    []string // source:target[:options]
	ExtraHosts []string // name:address
}

// ECS is how tasks are made.
type ECS struct {
	Cluster                    string
	Subnets                    []string
	SecurityGroups             []string
	LaunchType                 string
	AssignPublicIP             bool
	TaskDefinitionTemplateFile string
}

// Origin returns where the value of a key comes from: the file, a variable, or
// the defaults.
func (c *Config) Origin(key string) Origin { return c.origins[key] }

// Written returns the keys that the file or a variable sets, sorted.
func (c *Config) Written() []string { return slices.Sorted(maps.Keys(c.origins)) }

// configOf reads the settings out of a table that holds every key and has been
// judged.
func configOf(t table) *Config {
	r := reader{t}
	return &Config{
		Token:                  secret.New(r.text("token")),
		TokenFile:              r.text("token_file"),
		ServiceURL:             r.text("service_url"),
		WorkingDirectory:       r.text("working_directory"),
		SharedVolumeDirectory:  r.text("shared_volume_directory"),
		DeployTarget:           r.text("deploy_target"),
		SingleRun:              r.bool("single_run"),
		PullImage:              r.bool("pull_image"),
		EnabledWorkflowTypes:   r.list("enabled_workflow_types"),
		EnvForwardAllowlist:    r.list("env_forward_allowlist"),
		OIDCTokenFile:          r.text("oidc_token_file"),
		OrganizationName:       r.text("organization_name"),
		RunnerPoolID:           r.text("runner_pool_id"),
		TokenExpiration:        r.duration("token_expiration"),
		PollingInterval:        r.duration("polling_interval"),
		PollingOverride:        r.bool("polling_interval_override"),
		JobStatusLoopInterval:  r.duration("job_status_loop_interval"),
		RequestTimeout:         r.duration("request_timeout"),
		RequestRetryCount:      r.int("request_retry_count"),
		RequestRetryWait:       r.duration("request_retry_wait"),
		RequestRetryMaxWait:    r.duration("request_retry_max_wait"),
		CircuitBreakerFailures: r.int("circuit_breaker_failures"),
		CircuitBreakerTimeout:  r.duration("circuit_breaker_timeout"),
		HTTPServerPort:         r.int("http_server_port"),
		HealthThreshold:        r.duration("health_threshold"),
		Syslog:                 r.bool("syslog"),
		LogLevel:               r.text("log_level"),
		LogFormat:              r.text("log_format"),
		MaxConcurrentWorkflows: r.int("max_concurrent_workflows"),
		ShutdownTimeout:        r.duration("shutdown_timeout"),
		Docker: Docker{
			Network:    r.text("docker", "network"),
			Volumes:    r.list("docker", "volumes"),
			ExtraHosts: r.list("docker", "extra_hosts"),
		},
		ECS: ECS{
			Cluster:                    r.text("ecs", "cluster"),
			Subnets:                    r.list("ecs", "subnets"),
			SecurityGroups:             r.list("ecs", "security_groups"),
			LaunchType:                 r.text("ecs", "launch_type"),
			AssignPublicIP:             r.bool("ecs", "assign_public_ip"),
			TaskDefinitionTemplateFile: r.text("ecs", "task_definition_template_file"),
		},
	}
}

// reader takes typed values out of a judged table. What is missing is zero.
type reader struct{ table table }

func (r reader) text(path ...string) string {
	v, _ := r.table.get(path...)
	text, _ := v.data.(string)
	return text
}

func (r reader) bool(path ...string) bool {
	v, _ := r.table.get(path...)
	b, _ := v.data.(bool)
	return b
}

func (r reader) int(path ...string) int {
	v, _ := r.table.get(path...)
	n, _ := v.data.(int)
	return n
}

func (r reader) duration(path ...string) time.Duration {
	v, _ := r.table.get(path...)
	d, _ := duration(v.data)
	return d
}

func (r reader) list(path ...string) []string {
	v, _ := r.table.get(path...)
	entries, _ := v.data.([]value)
	var list []string
	for _, entry := range entries {
		if text, ok := entry.data.(string); ok {
			list = append(list, text)
		}
	}
	return list
}
