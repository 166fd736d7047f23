package schema

import (
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cmwa-project/cmwa/schema/position"
)

// check applies the rules across the keys of one pool, and fills in what follows
// from other keys. A rule is silent if a value that it needs is out already.
func (s *scope) check() {
	s.names()
	s.service()
	s.credentials()
	s.certificates()
	s.template()
	s.retries()
	s.labels()
	s.sizes()
	s.forwarded()
	s.release()
	if s.pool.WorkingDirectory == "" {
		s.pool.WorkingDirectory = directoryOf(s.load.source.Executable)
	}
	slices.Sort(s.pool.EnabledWorkflowTypes)
	s.pool.EnabledWorkflowTypes = slices.Compact(s.pool.EnabledWorkflowTypes)
}

// check applies the rules across pools and the whole agent.
func (l *load) check(c *Config, t position.Mapping, scopes []*scope) {
	l.acrossPools(scopes)
	top := &scope{load: l, places: map[string]position.Origin{}}
	t.Origins("", top.places)
	l.times(c, top, scopes)
	top.address(c.HTTPServerAddress)
	if limit, ok := t["max_concurrent_workflows"].Data.(int); ok && len(poolEntries(t)) > 0 {
		c.MaxConcurrentWorkflows = limit // a pool alone has its own
	}
}

func (s *scope) service() {
	if s.valid("service_url") {
		u, err := url.Parse(s.pool.ServiceURL)
		if err == nil && u.Port() != "" {
			_, err = strconv.ParseUint(u.Port(), 10, 16)
		}
		if err != nil || u.Hostname() == "" {
			s.refuse(position.RuleValue, "must be "+s.load.schema.byKey["service_url"].sentence(), "", "service_url")
		}
	}
	s.pool.ServiceURL = strings.TrimRight(s.pool.ServiceURL, "/")
}

// sizes refuses limits that no engine takes.
func (s *scope) sizes() {
	const least, most = 6 << 20, 1 << 50 // bytes; the least is Docker's
	if v, ok := s.values.Get("docker", "memory"); ok && s.valid("docker.memory") {
		text, _ := v.Data.(string)
		if n, fits := size(text); text != "" && (!fits || n < least || n > most) {
			s.refuse(position.RuleValue, "must be from 6m to 1024t", "", "docker.memory")
		}
	}
	if n := s.pool.Docker.CPUs; n > 0 && n < 0.01 && s.valid("docker.cpus") {
		s.refuse(position.RuleValue, "must be at least 0.01", "", "docker.cpus")
	}
}

// labels refuses labels of containers that the agent would take for its own.
func (s *scope) labels() {
	v, ok := s.values.Get("docker", "labels")
	if !ok || !s.valid("docker.labels") {
		return
	}
	entries, _ := v.Data.([]position.Value)
	for i, entry := range entries {
		if label, ok := entry.Data.(string); ok && strings.HasPrefix(label, "cmwa.") {
			p := position.NewError(position.RuleProtectedField, entry.At,
				fmt.Sprintf("%s.%d", s.path("docker.labels"), i),
				"must not begin with cmwa., which the agent keeps for its own labels", "")
			if entry.At.Variable != "" {
				p.Path = entry.At.Variable
			}
			s.load.report(p)
		}
	}
}

func (s *scope) retries() {
	c := s.pool
	if c.RequestRetryWait > c.RequestRetryMaxWait && s.valid("request_retry_wait", "request_retry_max_wait") {
		s.refuse(position.RuleTimes,
			fmt.Sprintf("must not be longer than request_retry_max_wait, which is %s", short(c.RequestRetryMaxWait)),
			"", "request_retry_wait", "request_retry_max_wait")
	}
}

// times checks that the time budgets of the agent fit into each other.
func (l *load) times(c *Config, top *scope, scopes []*scope) {
	var longer time.Duration
	good := top.valid("health_threshold")
	for _, s := range scopes {
		longer = max(longer, s.pool.PollingInterval, s.pool.JobStatusLoopInterval)
		good = good && s.valid("polling_interval", "job_status_loop_interval")
	}
	switch {
	case c.HealthThreshold == 0:
		c.HealthThreshold = 2 * longer
	case c.HealthThreshold <= longer && good:
		top.warn(position.RuleTimes,
			fmt.Sprintf("is not longer than the pause of %s between two steps, so that a single failed poll makes the agent not ready", short(longer)),
			"make it at least twice as long as polling_interval and job_status_loop_interval", "health_threshold")
	}
	stopGrace := l.source.Release.StopGrace
	if !top.valid("shutdown_timeout") || stopGrace == 0 {
		return
	}
	if c.ShutdownTimeout > 0 && c.ShutdownTimeout < stopGrace {
		top.warn(position.RuleTimes,
			fmt.Sprintf("is shorter than the %s that a job has to stop once it is asked to", short(stopGrace)),
			"make it longer, or 0s to ask running jobs to stop at once", "shutdown_timeout")
	}
	if grace := l.source.TerminationGrace; grace > 0 && c.ShutdownTimeout+stopGrace > grace {
		top.warn(position.RuleTimes,
			fmt.Sprintf("with the %s that jobs have to stop, it is longer than the Pod's termination grace of %s: the agent is killed before its jobs have ended", short(stopGrace), short(grace)),
			"make it shorter, or terminationGracePeriodSeconds longer", "shutdown_timeout")
	}
}

// release refuses what the release cannot carry out.
func (s *scope) release() {
	r := s.load.source.Release
	target := s.pool.DeployTarget
	if r.Targets != nil && s.valid("deploy_target") && !slices.Contains(r.Targets, target) {
		message := fmt.Sprintf("%s is not in this release; it has %s", target, words(r.Targets, "and"))
		s.refuse(position.RuleRelease, message, "", "deploy_target")
	}
	carriedOut := func(kind string) bool { return slices.Contains(r.Kinds, kind) }
	if r.Kinds != nil && s.valid("enabled_workflow_types") &&
		!slices.ContainsFunc(s.pool.EnabledWorkflowTypes, carriedOut) {
		message := fmt.Sprintf("must contain %s, as this release claims nothing else", words(r.Kinds, "or"))
		s.refuse(position.RuleRelease, message, "", "enabled_workflow_types")
	}
}

// address refuses what looks like an IP address and is none.
func (s *scope) address(text string) {
	if !s.valid("http_server_address") || !strings.Contains(text, ":") && strings.Trim(text, "0123456789.") != "" ||
		text == "" {
		return
	}
	if _, err := netip.ParseAddr(text); err != nil {
		s.refuse(position.RuleValue, "must be "+s.load.schema.byKey["http_server_address"].sentence(), "",
			"http_server_address")
	}
}
