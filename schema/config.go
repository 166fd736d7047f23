package schema

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/cmwa-project/cmwa/schema/position"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// Config is a loaded configuration: the values of the file, overridden by variables, and
// defaults for the keys that neither sets. [Load] returns it, and nothing changes it
// afterwards; goroutines may share it. Its printed form contains no secret.
type Config struct {
	Path   string   // path of the file; empty without a file
	Digest string   // digest of everything that was read for the configuration, in hexadecimal
	Files  []string // files that the configuration names, sorted; some may not exist

	Pools []Pool // at least one; names are unique

	HTTPServerAddress      string        // IP address or host name; empty is all addresses
	HTTPServerPort         int           // 0 is no HTTP server
	HealthThreshold        time.Duration // never 0
	Syslog                 bool
	LogLevel               string
	LogFormat              string
	MaxConcurrentWorkflows int // of all pools together; with 0 only the limits of pools apply
	ShutdownTimeout        time.Duration
	Strict                 bool   // an unknown key is an error, and so is a file without settings
	StateDirectory         string // if empty, the agent chooses one
	OverrideImage          string // replaces the image that the service requests; only a variable sets it
	DebugPod               bool   // keep every worker Pod; only a variable sets it

	settings []poolSettings
}

// Pool has the settings of one pool. A key that the pool does not set has the value of the
// top level; variables and defaults are applied.
type Pool struct {
	Name                   string        // "default" where the file has no pools
	Token                  secret.String // from token or token_file; empty with OIDC
	TokenFile              string
	ServiceURL             string // without a slash at its end
	CAFile                 string
	CA                     string // content of CAFile: certificates in PEM form; may be empty
	WorkingDirectory       string // never empty if the executable is known
	SharedVolumeDirectory  string
	DeployTarget           string
	SingleRun              bool
	IdleTimeout            time.Duration // of a single run; 0 is no limit
	PullImage              bool
	JobLog                 string
	EnabledWorkflowTypes   []string // at least one, each once
	EnvForwardAllowlist    []string
	OIDCTokenFile          string // empty is no OIDC
	OIDCSum                string // SHA-256 of the content of that file, in hexadecimal; empty if it cannot be read
	OrganizationName       string
	RunnerPoolID           string
	TokenExpiration        time.Duration // 0 lets the service decide
	PollingInterval        time.Duration
	PollingOverride        bool
	JobStatusLoopInterval  time.Duration
	CancelGracePeriod      time.Duration
	RequestTimeout         time.Duration
	RequestRetryCount      int
	RequestRetryWait       time.Duration
	RequestRetryMaxWait    time.Duration
	CircuitBreakerFailures int
	CircuitBreakerTimeout  time.Duration
	MaxConcurrentWorkflows int
	LeasedWork             string // auto, always or never
	MaxConcurrentLeased    int    // scans and policy evaluations
	Docker                 Docker
	Kubernetes             Kubernetes
	ECS                    ECS
	PodTemplate            map[string]any // from pod_template or pod_template_file; may be nil; must not be changed
	PodTemplateFile        string
	PodTemplateRules       []TemplateRule // merged after PodTemplate, in order
}

// DefaultPool is the name of the only pool of a file without pools.
const DefaultPool = "default"

// DefaultPodTemplateFile is used for deploy_target kubernetes if it exists and no other
// template is set. The packaging of Pulumi's own agent mounts it.
const DefaultPodTemplateFile = "/mnt/worker-pod.json"

// Docker has the settings of containers.
type Docker struct {
	Network      string
	Volumes      []string // source:target[:options]
	ExtraHosts   []string // name:address
	Memory       int64    // in bytes; 0 is no limit
	CPUs         float64  // in cores; 0 is no limit
	PidsLimit    int      // processes and threads; 0 is no limit
	StorageLimit int64    // in bytes; 0 is no limit
	User         string   // user[:group]; empty is the image's
	Labels       []string // name=value

	AllowNewPrivileges bool
}

// Kubernetes has the settings of Pods.
type Kubernetes struct {
	Context               string // of the kubeconfig; empty is the agent's own cluster or the current context
	Namespace             string // empty is the agent's own
	Image                 string // with the runner programs; empty is the agent's own release
	ImagePullPolicy       string
	ServiceAccount        string // empty is the namespace's default
	CPU                   string // quantity; may be empty
	Memory                string // quantity; may be empty
	EphemeralStorage      string // quantity; may be empty
	CPULimit              string // quantity; may be empty
	MemoryLimit           string // quantity; may be empty
	EphemeralStorageLimit string // quantity; may be empty
	Handoff               string // sealed or secret
	StartTimeout          time.Duration
	ImagePullTimeout      time.Duration
	KeepFailedPods        bool
	QPS                   int // requests per second to the API server
}

// ECS has the settings of tasks.
type ECS struct {
	Cluster                    string
	Subnets                    []string
	SecurityGroups             []string
	LaunchType                 string
	AssignPublicIP             bool
	TaskDefinitionTemplateFile string
}

// processOf returns the settings of the whole agent. t has every key with a checked value;
// variableOnly has the variables without a key.
func processOf(t, variableOnly position.Mapping) *Config {
	r := reader{t}
	return &Config{
		HTTPServerAddress: r.text("http_server_address"),
		HTTPServerPort:    r.int("http_server_port"),
		HealthThreshold:   r.duration("health_threshold"),
		Syslog:            r.bool("syslog"),
		LogLevel:          r.text("log_level"),
		LogFormat:         r.text("log_format"),
		ShutdownTimeout:   r.duration("shutdown_timeout"),
		Strict:            r.bool("strict"),
		StateDirectory:    r.text("state_directory"),
		OverrideImage:     reader{variableOnly}.text("override_image"),
		DebugPod:          reader{variableOnly}.bool("debug_pod"),
	}
}

// poolOf returns the settings of a pool. t has every key with a checked value.
func poolOf(t position.Mapping) *Pool {
	r := reader{t}
	memory, _ := size(r.text("docker", "memory"))
	storage, _ := size(r.text("docker", "storage_limit"))
	return &Pool{
		Name:                   r.text("name"),
		Token:                  secret.New(r.text("token")),
		TokenFile:              r.text("token_file"),
		ServiceURL:             r.text("service_url"),
		CAFile:                 r.text("ca_file"),
		WorkingDirectory:       r.text("working_directory"),
		SharedVolumeDirectory:  r.text("shared_volume_directory"),
		DeployTarget:           r.text("deploy_target"),
		SingleRun:              r.bool("single_run"),
		IdleTimeout:            r.duration("idle_timeout"),
		PullImage:              r.bool("pull_image"),
		JobLog:                 r.text("job_log"),
		EnabledWorkflowTypes:   r.list("enabled_workflow_types"),
		EnvForwardAllowlist:    r.list("env_forward_allowlist"),
		OIDCTokenFile:          r.text("oidc_token_file"),
		OrganizationName:       r.text("organization_name"),
		RunnerPoolID:           r.text("runner_pool_id"),
		TokenExpiration:        r.duration("token_expiration"),
		PollingInterval:        r.duration("polling_interval"),
		PollingOverride:        r.bool("polling_interval_override"),
		JobStatusLoopInterval:  r.duration("job_status_loop_interval"),
		CancelGracePeriod:      r.duration("cancel_grace_period"),
		RequestTimeout:         r.duration("request_timeout"),
		RequestRetryCount:      r.int("request_retry_count"),
		RequestRetryWait:       r.duration("request_retry_wait"),
		RequestRetryMaxWait:    r.duration("request_retry_max_wait"),
		CircuitBreakerFailures: r.int("circuit_breaker_failures"),
		CircuitBreakerTimeout:  r.duration("circuit_breaker_timeout"),
		MaxConcurrentWorkflows: r.int("max_concurrent_workflows"),
		LeasedWork:             r.text("leased_work"),
		MaxConcurrentLeased:    r.int("max_concurrent_leased_workflows"),
		Docker: Docker{
			Network:      r.text("docker", "network"),
			Volumes:      r.list("docker", "volumes"),
			ExtraHosts:   r.list("docker", "extra_hosts"),
			Memory:       memory,
			CPUs:         r.cores("docker", "cpus"),
			PidsLimit:    r.int("docker", "pids_limit"),
			StorageLimit: storage,
			User:         r.text("docker", "user"),
			Labels:       r.list("docker", "labels"),

			AllowNewPrivileges: r.bool("docker", "allow_new_privileges"),
		},
		Kubernetes: Kubernetes{
			Context:               r.text("kubernetes", "context"),
			Namespace:             r.text("kubernetes", "namespace"),
			Image:                 r.text("kubernetes", "image"),
			ImagePullPolicy:       r.text("kubernetes", "image_pull_policy"),
			ServiceAccount:        r.text("kubernetes", "service_account"),
			CPU:                   r.text("kubernetes", "cpu"),
			Memory:                r.text("kubernetes", "memory"),
			EphemeralStorage:      r.text("kubernetes", "ephemeral_storage"),
			CPULimit:              r.text("kubernetes", "cpu_limit"),
			MemoryLimit:           r.text("kubernetes", "memory_limit"),
			EphemeralStorageLimit: r.text("kubernetes", "ephemeral_storage_limit"),
			Handoff:               r.text("kubernetes", "handoff"),
			StartTimeout:          r.duration("kubernetes", "start_timeout"),
			ImagePullTimeout:      r.duration("kubernetes", "image_pull_timeout"),
			KeepFailedPods:        r.bool("kubernetes", "keep_failed_pods"),
			QPS:                   r.int("kubernetes", "qps"),
		},
		ECS: ECS{
			Cluster:                    r.text("ecs", "cluster"),
			Subnets:                    r.list("ecs", "subnets"),
			SecurityGroups:             r.list("ecs", "security_groups"),
			LaunchType:                 r.text("ecs", "launch_type"),
			AssignPublicIP:             r.bool("ecs", "assign_public_ip"),
			TaskDefinitionTemplateFile: r.text("ecs", "task_definition_template_file"),
		},
		PodTemplateFile: r.text("pod_template_file"),
	}
}

// reader returns checked values by their types. A missing value is zero.
type reader struct{ values position.Mapping }

func (r reader) text(path ...string) string {
	v, _ := r.values.Get(path...)
	switch data := v.Data.(type) {
	case string:
		return data
	case int, float64: // of a quantity
		return fmt.Sprint(data)
	default:
		return ""
	}
}

func (r reader) cores(path ...string) float64 {
	v, _ := r.values.Get(path...)
	n, _ := cores(v.Data)
	return n
}

func (r reader) bool(path ...string) bool {
	v, _ := r.values.Get(path...)
	b, _ := v.Data.(bool)
	return b
}

func (r reader) int(path ...string) int {
	v, _ := r.values.Get(path...)
	n, _ := v.Data.(int)
	return n
}

func (r reader) duration(path ...string) time.Duration {
	v, _ := r.values.Get(path...)
	d, _ := duration(v.Data)
	return d
}

func (r reader) list(path ...string) []string {
	v, _ := r.values.Get(path...)
	entries, _ := v.Data.([]position.Value)
	var list []string
	for _, entry := range entries {
		if text, ok := entry.Data.(string); ok {
			list = append(list, text)
		}
	}
	return list
}

// cores parses a number of CPU cores: 2, 0.5, or 500m for half a core. Empty text is zero.
func cores(data any) (float64, bool) {
	switch data := data.(type) {
	case int:
		return float64(data), true
	case float64:
		return data, true
	case string:
		if data == "" {
			return 0, true
		}
		text, milli := strings.CutSuffix(data, "m")
		n, err := strconv.ParseFloat(text, 64)
		if milli {
			n /= 1000
		}
		return n, err == nil
	default:
		return 0, false
	}
}

// size parses an amount of memory in the notation of Docker or Kubernetes and returns it in
// bytes. Units are powers of two. Empty text is zero.
func size(text string) (int64, bool) {
	if text == "" {
		return 0, true
	}
	number := strings.TrimRight(text, "kKmMgGtTiIbB")
	unit := strings.ToLower(text[len(number):])
	n, err := strconv.ParseFloat(number, 64)
	if err != nil || unit == "" {
		return 0, false
	}
	shift := 10 * (1 + strings.IndexByte("kmgt", unit[0]))
	n *= float64(int64(1) << shift)
	return int64(n), n < 1<<62
}

// duration parses a duration in Go's notation, or a whole number of seconds. Empty text is
// zero.
func duration(data any) (time.Duration, bool) {
	switch data := data.(type) {
	case string:
		if data == "" {
			return 0, true
		}
		d, err := time.ParseDuration(data)
		return d, err == nil
	case int:
		const most = int(1<<63-1) / int(time.Second)
		return time.Duration(data) * time.Second, -most <= data && data <= most
	default:
		return 0, false
	}
}
