package reconcile

import (
	"encoding/json"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/schema"
)

// Desired is the desired state: one generation of the configuration.
type Desired struct {
	Generation uint64
	Digest     string                      // of the configuration
	Pools      map[string]runtime.PoolSpec // by key
	Process    ProcessSpec

	// Paused contains the names of the pools that an operator has paused, so that they claim
	// no jobs. It is not part of the configuration, and also applies to later generations.
	Paused map[string]bool
}

// ProcessSpec describes the process as a whole: its log, listener and limits.
type ProcessSpec struct {
	LogLevel        string // debug, info, warn or error
	LogFormat       string // text or json
	Syslog          bool
	HTTPAddress     string        // IP address or host name that the HTTP server listens on; empty is all
	HTTPPort        int           // 0 means no HTTP server
	HealthThreshold time.Duration // time without progress after which a pool is unhealthy
	ShutdownTimeout time.Duration // for running jobs to finish after the first signal
	MaxJobs         int           // limit of all pools together; 0 leaves the limits of the pools
}

// allReady reports whether every desired pool has started.
func (d Desired) allReady(states map[string]runtime.PoolState) bool {
	for key := range d.Pools {
		if !states[key].Ready {
			return false
		}
	}
	return true
}

// Want translates a configuration into the desired state. No other function converts pools
// of package schema to those of package runtime.
func Want(c *schema.Config, generation uint64) Desired {
	desired := Desired{
		Generation: generation,
		Digest:     c.Digest,
		Pools:      make(map[string]runtime.PoolSpec, len(c.Pools)),
		Process: ProcessSpec{
			LogLevel: c.LogLevel, LogFormat: c.LogFormat, Syslog: c.Syslog,
			HTTPAddress: c.HTTPServerAddress, HTTPPort: c.HTTPServerPort,
			HealthThreshold: c.HealthThreshold, ShutdownTimeout: c.ShutdownTimeout, MaxJobs: c.MaxConcurrentWorkflows,
		},
	}
	for i := range c.Pools {
		spec := poolSpec(c, &c.Pools[i], generation)
		desired.Pools[spec.Key()] = spec
	}
	return desired
}

// poolSpec translates one pool of a configuration. It omits the keys of docker, and those of kubernetes with the
// Pod template, if the pool has another deploy_target.
func poolSpec(c *schema.Config, p *schema.Pool, generation uint64) runtime.PoolSpec {
	credentials := "token"
	if p.OIDCTokenFile != "" {
		credentials = "oidc"
	}

	// The settings of the deploy_target.
	namespace, context, docker, kubernetes := "", "", runtime.Docker{}, runtime.Kubernetes{}
	switch p.DeployTarget {
	case "docker":
		docker = runtime.Docker(p.Docker)
	case "kubernetes":
		namespace, context = p.Kubernetes.Namespace, p.Kubernetes.Context
		kubernetes = runtime.Kubernetes{
			Image: p.Kubernetes.Image, ImagePullPolicy: p.Kubernetes.ImagePullPolicy,
			ServiceAccount: p.Kubernetes.ServiceAccount,
			Requests: runtime.Resources{
				CPU: p.Kubernetes.CPU, Memory: p.Kubernetes.Memory, EphemeralStorage: p.Kubernetes.EphemeralStorage,
			},
			Limits: runtime.Resources{
				CPU: p.Kubernetes.CPULimit, Memory: p.Kubernetes.MemoryLimit,
				EphemeralStorage: p.Kubernetes.EphemeralStorageLimit,
			},
			Handoff: p.Kubernetes.Handoff, StartTimeout: p.Kubernetes.StartTimeout,
			ImagePullTimeout: p.Kubernetes.ImagePullTimeout,
			QPS:              p.Kubernetes.QPS, Template: podTemplate(p.PodTemplate),
			TemplateRules: templateRules(p.PodTemplateRules),
		}
		switch {
		case c.DebugPod:
			kubernetes.KeepPods = "all"
		case p.Kubernetes.KeepFailedPods:
			kubernetes.KeepPods = "failed"
		}
	}
	var kinds []runtime.Kind
	for _, kind := range p.EnabledWorkflowTypes {
		kinds = append(kinds, runtime.Kind(kind))
	}
	return runtime.PoolSpec{
		Name:       p.Name,
		Generation: generation,
		Identity: runtime.Identity{
			Service: p.ServiceURL, Organization: p.OrganizationName, PoolID: p.RunnerPoolID,
			Credentials: credentials, Target: p.DeployTarget, Namespace: namespace, Context: context,
		},
		Tuning: runtime.Tuning{
			Token: p.Token, OIDCTokenFile: p.OIDCTokenFile, OIDCSum: p.OIDCSum, TokenExpiration: p.TokenExpiration,
			CA:    p.CA,
			Kinds: kinds, MaxJobs: p.MaxConcurrentWorkflows, SingleRun: p.SingleRun, IdleTimeout: p.IdleTimeout,
			LeasedWork: runtime.LeasedWork(p.LeasedWork), MaxLeased: p.MaxConcurrentLeased,
			PollingInterval: p.PollingInterval, PollingOverride: p.PollingOverride,
			StatusInterval: p.JobStatusLoopInterval, CancelGrace: p.CancelGracePeriod,
			RequestTimeout: p.RequestTimeout, RetryCount: p.RequestRetryCount,
			RetryWait: p.RequestRetryWait, RetryMaxWait: p.RequestRetryMaxWait,
			BreakerFailures: p.CircuitBreakerFailures, BreakerTimeout: p.CircuitBreakerTimeout,
			Instance: runtime.InstanceSpec{
				WorkingDirectory: p.WorkingDirectory, SharedVolumeDirectory: p.SharedVolumeDirectory,
				PullImage: p.PullImage, OverrideImage: c.OverrideImage, Forward: p.EnvForwardAllowlist,
				LocalLog: p.JobLog == "both",
				Docker:   docker, Kubernetes: kubernetes,
			},
		},
	}
}

func templateRules(rules []schema.TemplateRule) (all []runtime.TemplateRule) {
	for _, r := range rules {
		all = append(all, runtime.TemplateRule{
			Organization: r.Organization, Project: r.Project, Stack: r.Stack, Operation: r.Operation,
			Patch: podTemplate(r.Patch),
		})
	}
	return all
}

// podTemplate returns a template in JSON, or nil without one.
func podTemplate(template map[string]any) []byte {
	if template == nil {
		return nil
	}
	text, err := json.Marshal(template)
	if err != nil {
		panic(err) // decoded from YAML or JSON, with keys that are text
	}
	return text
}
