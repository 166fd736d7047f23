package schema

import (
	"fmt"
	"maps"
	"math/big"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cmwa-project/cmwa/schema/podtemplate"
	"github.com/cmwa-project/cmwa/schema/position"
	"github.com/cmwa-project/cmwa/schema/printable"
)

// check applies the rules of one pool that schema.cue does not contain, and sets values that
// depend on other keys. Most of these rules concern several keys. A rule is skipped if one of
// the values that it concerns is invalid.
func (s *scope) check() {
	s.rejectTokensAsPaths()
	s.resolvePaths()
	s.checkServiceURL()
	s.chooseCredentials()
	s.readCertificates()
	s.readTemplate()
	s.readTemplateRules()
	s.checkRetries()
	s.checkIdle()
	s.checkLeased()
	s.checkLabels()
	s.checkSizes()
	s.checkResources()
	s.checkForwarded()
	s.checkRelease()
	s.checkLocal()
	if s.pool.WorkingDirectory == "" {
		s.pool.WorkingDirectory = directoryOf(s.load.source.Executable)
	}
	slices.Sort(s.pool.EnabledWorkflowTypes)
	s.pool.EnabledWorkflowTypes = slices.Compact(s.pool.EnabledWorkflowTypes)
}

// check applies the rules that concern several pools or the whole agent.
func (l *load) check(c *Config, t position.Mapping) {
	l.acrossPools()
	l.checkTargets()
	top := &scope{load: l, origins: map[string]position.Origin{}}
	t.Origins("", top.origins)
	l.checkTimes(c, top)
	top.checkAddress(c.HTTPServerAddress)
	if limit, ok := t["max_concurrent_workflows"].Data.(int); ok && len(poolEntries(t)) > 0 {
		c.MaxConcurrentWorkflows = limit // without a list of pools, the limit of the only pool is enough
	}
}

func (s *scope) checkServiceURL() {
	if s.valid("service_url") {
		u, err := url.Parse(s.pool.ServiceURL)
		if err == nil && u.Port() != "" {
			_, err = strconv.ParseUint(u.Port(), 10, 16)
		}
		if err != nil || u.Hostname() == "" {
			s.refuse(position.RuleValue, "must be "+s.load.schema.byKey["service_url"].sentence(), "", "service_url")
		} else if u.Scheme == "http" && !isLoopback(u.Hostname()) && (s.load.source.Elsewhere || !isOwn(u.Hostname())) {
			s.warn(position.RuleClearText, "the token is sent without TLS: others in the network can read it",
				"write https://", "service_url")
		} else if isLoopback(u.Hostname()) && s.inContainers() {
			s.warn(position.RuleLoopback, "in the container of a job, this address is the container itself",
				"let the service listen on an address of this machine that containers reach, and write that address",
				"service_url")
		}
	}
	s.pool.ServiceURL = strings.TrimRight(s.pool.ServiceURL, "/")
	pin := s.load.source.PinnedServiceURL
	if pin != "" && s.pool.ServiceURL != strings.TrimRight(pin, "/") && s.valid("service_url") {
		s.refuse(position.RuleValue, fmt.Sprintf("must be %s, because the agent was started with this pin", pin),
			"correct it, or start the agent with another --service-url-pin or CMWA_SERVICE_URL_PIN", "service_url")
	}
}

// inContainers reports whether the jobs of the pool run in containers with a network of their own.
func (s *scope) inContainers() bool {
	switch {
	case !s.valid("deploy_target", "docker.network"):
		return false
	case s.pool.DeployTarget == "docker":
		return s.pool.Docker.Network != "host"
	}
	return s.pool.DeployTarget == "kubernetes"
}

// isLoopback reports whether a host name or an address is that of this machine.
func isLoopback(host string) bool {
	address, err := netip.ParseAddr(host)
	return host == "localhost" || strings.HasSuffix(host, ".localhost") || err == nil && address.IsLoopback()
}

// isOwn reports whether a host is an address of this machine, such as that of docker0.
func isOwn(host string) bool {
	address, err := netip.ParseAddr(host)
	if err != nil {
		return false
	}
	all, _ := net.InterfaceAddrs()
	return slices.ContainsFunc(all, func(a net.Addr) bool {
		prefix, err := netip.ParsePrefix(a.String())
		return err == nil && prefix.Addr() == address
	})
}

// checkTargets warns about settings for a deploy_target that the pool does not have, if the source
// is vetted. A setting that pools inherit has an effect if one of the pools has the target.
func (l *load) checkTargets() {
	if !l.source.vetted {
		return
	}
	reported := map[string]bool{}
	for _, s := range l.pools {
		for _, key := range slices.Sorted(maps.Keys(s.values)) {
			target := targetOf(key)
			path := s.path(key)
			isUser := func(user *scope) bool {
				return !user.valid("deploy_target") || user.pool.DeployTarget == target && (user == s || !s.own(key))
			}
			value := s.values[key]
			fields, isMapping := value.Data.(position.Mapping)
			if target == "" || value.Key.Line == 0 || isMapping && len(fields) == 0 || reported[path] ||
				slices.ContainsFunc(l.pools, isUser) {
				continue
			}
			reported[path] = true
			l.report(position.NewWarning(position.RuleUnused, value.Key, path,
				"has no effect, because deploy_target is "+s.pool.DeployTarget,
				fmt.Sprintf("set deploy_target: %s, or remove it", target)))
		}
	}
}

// targetOf returns the deploy_target for which a key of a pool is, and "" if it is for all.
func targetOf(key string) string {
	switch {
	case strings.HasPrefix(key, "pod_template"):
		return "kubernetes"
	case key == "docker", key == "kubernetes", key == "ecs":
		return key
	default:
		return ""
	}
}

// checkSizes rejects limits that no engine accepts, or with which no job can run.
func (s *scope) checkSizes() {
	const least, most = 6 << 20, 1 << 50 // bytes; least is the minimum of Docker
	for _, key := range []string{"memory", "storage_limit"} {
		v, ok := s.values.Get("docker", key)
		if text, _ := v.Data.(string); ok && text != "" && s.valid("docker."+key) {
			if n, fits := size(text); !fits || n < least || n > most {
				s.refuse(position.RuleValue, "must be from 6m to 1024t", "", "docker."+key)
			}
		}
	}
	if n := s.pool.Docker.CPUs; n > 0 && n < 0.01 && s.valid("docker.cpus") {
		s.refuse(position.RuleValue, "must be at least 0.01", "", "docker.cpus")
	}
}

// checkResources rejects amounts for Pods that are zero, and limits below the request. The
// problem is that of the limit, unless only the request is in the pool's own entry.
func (s *scope) checkResources() {
	for _, name := range []string{"cpu", "memory", "ephemeral_storage"} {
		request, limit := "kubernetes."+name, "kubernetes."+name+"_limit"
		for _, key := range []string{request, limit} {
			if amount, _ := s.amount(key); amount != nil && amount.Sign() == 0 {
				s.refuse(position.RuleValue, "must be more than 0", "", key)
			}
		}
		least, leastText := s.amount(request)
		most, mostText := s.amount(limit)
		switch {
		case least == nil || most == nil || most.Sign() == 0 || least.Cmp(most) <= 0:
		case s.own(request) && !s.own(limit):
			s.refuse(position.RuleValue, fmt.Sprintf("must not be more than %s, which is %s", limit, mostText), "",
				request)
		default:
			s.refuse(position.RuleValue, fmt.Sprintf("must not be less than %s, which is %s", request, leastText), "",
				limit)
		}
	}
}

// amount returns the value of a key that is a quantity of Kubernetes, and its text. It returns
// nil if the value is invalid or unset.
func (s *scope) amount(key string) (*big.Rat, string) {
	if !s.valid(key) {
		return nil, ""
	}
	text := reader{s.values}.text(strings.Split(key, ".")...)
	amount, _ := podtemplate.Quantity(text)
	return amount, text
}

// checkLabels rejects labels of containers that are reserved for the agent.
func (s *scope) checkLabels() {
	v, ok := s.values.Get("docker", "labels")
	if !ok || !s.valid("docker.labels") {
		return
	}
	entries, _ := v.Data.([]position.Value)
	for i, entry := range entries {
		if label, ok := entry.Data.(string); ok && strings.HasPrefix(label, "cmwa.") {
			s.load.report(position.NewError(position.RuleProtectedField, entry.At,
				fmt.Sprintf("%s.%d", s.path("docker.labels"), i),
				"must not begin with cmwa., which is reserved for labels of the agent", ""))
		}
	}
}

func (s *scope) checkRetries() {
	c := s.pool
	if c.RequestRetryWait > c.RequestRetryMaxWait && s.valid("request_retry_wait", "request_retry_max_wait") {
		s.refuse(position.RuleTimes,
			fmt.Sprintf("must not be longer than request_retry_max_wait, which is %s",
				formatDuration(c.RequestRetryMaxWait)),
			"", "request_retry_wait", "request_retry_max_wait")
	}
}

// checkIdle warns about an idle timeout that has no effect.
func (s *scope) checkIdle() {
	if s.pool.IdleTimeout > 0 && !s.pool.SingleRun && s.valid("idle_timeout", "single_run") {
		s.warn(position.RuleTimes, "has no effect without single_run", "set single_run, or remove it", "idle_timeout")
	}
}

// checkLeased warns about a pool that gets no jobs at all.
func (s *scope) checkLeased() {
	if !s.valid("enabled_workflow_types", "leased_work") ||
		slices.Contains(s.pool.EnabledWorkflowTypes, "deployment") {
		return
	}
	switch {
	case s.pool.LeasedWork == "never":
		s.warn(position.RuleUnused, "the pool gets no jobs, because leased_work is never",
			"add deployment, or remove leased_work", "enabled_workflow_types")
	case s.load.source.vetted && s.pool.LeasedWork == "auto" && s.valid("service_url") &&
		s.pool.ServiceURL == pulumiCloud:
		s.warn(position.RuleUnused, "the pool gets no jobs: from Pulumi Cloud, this agent gets only deployments",
			"add deployment, or set the service_url of a service that leases work", "enabled_workflow_types")
	}
}

// pulumiCloud is the URL of Pulumi Cloud, whose protocol for scans and policy evaluations is not public.
const pulumiCloud = "https://api.pulumi.com"

// checkTimes warns about durations of the agent that conflict with each other, and sets the
// default of the health threshold.
func (l *load) checkTimes(c *Config, top *scope) {
	var longer time.Duration
	valid := top.valid("health_threshold")
	for _, s := range l.pools {
		longer = max(longer, s.pool.PollingInterval, s.pool.JobStatusLoopInterval)
		valid = valid && s.valid("polling_interval", "job_status_loop_interval")
	}
	switch {
	case c.HealthThreshold == 0:
		c.HealthThreshold = 2 * longer
	case c.HealthThreshold <= longer && valid:
		top.warn(position.RuleTimes,
			fmt.Sprintf("is not longer than the time of %s between two polls or checks: "+
				"one failed poll makes the agent unready",
				formatDuration(longer)),
			"make it at least twice as long as polling_interval and job_status_loop_interval", "health_threshold")
	}

	// Check the time in which the agent's own Pod ends.
	grace, needed := l.source.TerminationGrace, l.source.Release.StopTime
	if top.valid("shutdown_timeout") && grace > 0 && needed > 0 && c.ShutdownTimeout+needed > grace {
		top.warn(position.RuleTimes,
			fmt.Sprintf("this time plus the %s that the agent needs to stop is longer than the Pod's grace period "+
				"of %s: the agent may be killed before it has stopped", formatDuration(needed), formatDuration(grace)),
			"make it shorter, or terminationGracePeriodSeconds longer", "shutdown_timeout")
	}
}

func (s *scope) checkRelease() {
	r := s.load.source.Release
	target := s.pool.DeployTarget
	if r.Targets != nil && s.valid("deploy_target") && !slices.Contains(r.Targets, target) {
		message := fmt.Sprintf("%s is not in this release; it has %s", target, printable.Join(r.Targets, "and"))
		s.refuse(position.RuleRelease, message, "", "deploy_target")
	}
	supported := func(kind string) bool { return slices.Contains(r.Kinds, kind) }
	if r.Kinds != nil && s.valid("enabled_workflow_types") &&
		!slices.ContainsFunc(s.pool.EnabledWorkflowTypes, supported) {
		message := fmt.Sprintf("must contain %s, as this release claims nothing else", printable.Join(r.Kinds, "or"))
		s.refuse(position.RuleRelease, message, "", "enabled_workflow_types")
	}
}

func (s *scope) checkAddress(text string) {
	if !s.valid("http_server_address") || !strings.Contains(text, ":") && strings.Trim(text, "0123456789.") != "" ||
		text == "" {
		return
	}
	if _, err := netip.ParseAddr(text); err != nil {
		s.refuse(position.RuleValue, "must be "+s.load.schema.byKey["http_server_address"].sentence(), "",
			"http_server_address")
	}
}
