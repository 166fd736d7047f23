package reconcile

import (
	"time"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/schema"
)

// defaultPool is the name of the pool that the top level of a file describes.
const defaultPool = "default"

// Desired is what should run: one generation of the configuration.
type Desired struct {
	Generation uint64
	Digest     string                      // of the configuration it comes from
	Pools      map[string]runtime.PoolSpec // by key
	Process    ProcessSpec
}

// ProcessSpec is what the process as a whole should be.
type ProcessSpec struct {
	LogLevel        string // debug, info, warn or error
	LogFormat       string // text or json
	Syslog          bool
	HTTPPort        int           // 0 is no HTTP server
	HealthThreshold time.Duration // longest time without progress that is healthy
	ShutdownTimeout time.Duration // for running jobs to finish after the first signal
}

// Want translates a configuration into what should run: the only place where
// the words of a file meet the words of what is run.
func Want(c *schema.Config, generation uint64) Desired {
	spec := poolSpec(c, generation)
	return Desired{
		Generation: generation,
		Digest:     c.Digest,
		Pools:      map[string]runtime.PoolSpec{spec.Key(): spec},
		Process: ProcessSpec{
			LogLevel: c.LogLevel, LogFormat: c.LogFormat, Syslog: c.Syslog,
			HTTPPort: c.HTTPServerPort, HealthThreshold: c.HealthThreshold, ShutdownTimeout: c.ShutdownTimeout,
		},
	}
}

func poolSpec(c *schema.Config, generation uint64) runtime.PoolSpec {
	credentials := "token"
	if c.OIDCTokenFile != "" {
		credentials = "oidc"
	}
	var kinds []runtime.Kind
	for _, kind := range c.EnabledWorkflowTypes {
		kinds = append(kinds, runtime.Kind(kind))
	}
	return runtime.PoolSpec{
		Name:       defaultPool,
		Generation: generation,
		Identity: runtime.Identity{
			Service: c.ServiceURL, Organization: c.OrganizationName, PoolID: c.RunnerPoolID,
			Credentials: credentials, Target: c.DeployTarget,
		},
		Tuning: runtime.Tuning{
			Token: c.Token, OIDCTokenFile: c.OIDCTokenFile, TokenExpiration: c.TokenExpiration,
			Kinds: kinds, MaxJobs: c.MaxConcurrentWorkflows, SingleRun: c.SingleRun,
			PollingInterval: c.PollingInterval, PollingOverride: c.PollingOverride, StatusInterval: c.JobStatusLoopInterval,
			RequestTimeout: c.RequestTimeout, RetryCount: c.RequestRetryCount, RetryWait: c.RequestRetryWait, RetryMaxWait: c.RequestRetryMaxWait,
			BreakerFailures: c.CircuitBreakerFailures, BreakerTimeout: c.CircuitBreakerTimeout,
			Place: runtime.Place{
				WorkingDirectory: c.WorkingDirectory, SharedVolumeDirectory: c.SharedVolumeDirectory,
				PullImage: c.PullImage, OverrideImage: c.OverrideImage, Forward: c.EnvForwardAllowlist,
				Docker: runtime.Docker{Network: c.Docker.Network, Volumes: c.Docker.Volumes, ExtraHosts: c.Docker.ExtraHosts},
			},
		},
	}
}
