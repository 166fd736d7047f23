package schema

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cmwa-project/cmwa/schema/position"
)

// scope has the settings of one pool while they are checked.
type scope struct {
	load    *load
	pool    *Pool
	at      string                     // path of the pool in the list of pools; empty without a list
	entry   position.Value             // of the list, at that path
	values  position.Mapping           // own and inherited settings, without defaults
	origins map[string]position.Origin // of every key that is set

	effective position.Mapping // values with defaults
}

func poolEntries(t position.Mapping) []position.Value {
	list, _ := t["pools"].Data.([]position.Value)
	return list
}

// A pool that sets one key of a group inherits no other key of this group.
var groups = [][]string{
	{"token", "token_file", "oidc_token_file"},
	{"pod_template", "pod_template_file"},
}

// scopes returns the pools of a checked file. There is at least one.
func (l *load) scopes(t, defaults position.Mapping) []*scope {
	shared := position.Mapping{}
	for i := range l.schema.fields {
		if f := &l.schema.fields[i]; f.Pool && !strings.Contains(f.Key, ".") {
			if v, ok := t[f.Key]; ok {
				shared[f.Key] = v
			}
		}
	}
	var scopes []*scope
	for i, entry := range poolEntries(t) {
		own, ok := entry.Data.(position.Mapping)
		if !ok {
			continue
		}
		inherited := shared
		for _, group := range groups {
			if slices.ContainsFunc(group, func(key string) bool { _, set := own[key]; return set }) {
				inherited = inherited.Without(group...)
			}
		}
		scopes = append(scopes, &scope{at: fmt.Sprintf("pools.%d", i), entry: entry, values: own.Over(inherited)})
	}
	if len(scopes) == 0 {
		scopes = []*scope{{values: shared}}
		if len(poolEntries(t)) > 0 {
			l.invalid["pools"] = true // no entry is a mapping
		}
	}
	for _, s := range scopes {
		s.load, s.origins, s.effective = l, map[string]position.Origin{}, s.values.Over(defaults)
		s.pool = poolOf(s.effective)
		s.values.Origins("", s.origins)
		if s.at == "" {
			s.pool.Name = DefaultPool
		}
	}
	return scopes
}

// path returns the path of a key: the path in the pool's entry if the entry sets the key,
// otherwise the path at the top level.
func (s *scope) path(key string) string {
	if s.own(key) {
		return position.Join(s.at, key)
	}
	return key
}

// own reports whether the pool's entry sets a key.
func (s *scope) own(key string) bool {
	entry, _ := s.entry.Data.(position.Mapping)
	_, ok := entry.Get(strings.Split(key, ".")...)
	return ok
}

// valid reports whether the value of each key is valid or unset, and known here.
func (s *scope) valid(keys ...string) bool {
	return !slices.ContainsFunc(keys, func(key string) bool {
		return s.load.invalid[position.Join(s.at, key)] ||
			(s.load.invalid[key] || s.load.unknown[key]) && !s.own(key)
	})
}

// refuse reports an error about keys; warn reports a warning.
func (s *scope) refuse(rule position.Rule, message, hint string, keys ...string) {
	s.problemAt(position.Error, rule, message, hint, keys...)
}

func (s *scope) warn(rule position.Rule, message, hint string, keys ...string) {
	s.problemAt(position.Warning, rule, message, hint, keys...)
}

// problemAt reports a problem of keys[0]. The position of the problem is that of the first
// key that is set. If no key is set, it is the position of the pool's entry.
func (s *scope) problemAt(severity position.Severity, rule position.Rule, message, hint string, keys ...string) {
	p := position.Problem{
		Severity: severity, Rule: rule, File: s.load.source.Path, Path: s.path(keys[0]),
		Message: message, Hint: hint,
	}
	at, ok := s.entry.At, s.at != ""
	if _, set := s.origins[keys[0]]; !set && ok {
		p.Path = position.Join(s.at, keys[0])
	}
	for _, key := range keys {
		if place, set := s.origins[key]; set {
			at, ok = place, true
			if at.Variable != "" && key == keys[0] {
				p.Path = at.Variable
			}
			break
		}
	}
	if ok {
		p.File, p.Line, p.Column = at.File, at.Line, at.Column
	}
	s.load.report(p)
}

func (l *load) acrossPools() {
	names := map[string]*scope{}
	for i, s := range l.pools {
		if first := names[s.pool.Name]; first != nil && s.pool.Name != "" {
			s.refuse(position.RulePools, fmt.Sprintf("the pool on line %d has the same name", first.entry.At.Line),
				"give each pool a unique name", "name")
		} else {
			names[s.pool.Name] = s
		}
		for _, other := range l.pools[:i] {
			if s.duplicates(other) {
				break
			}
		}
	}
	l.pollRate()
}

// duplicates reports an error, and returns true, if two pools would claim the same
// jobs. The pool that polls first would get a job, so the settings of the job would be
// arbitrary. Equal names of token files count as the same token, even if the file cannot
// be read.
func (s *scope) duplicates(other *scope) bool {
	// Only pools of one service that claim the same kinds of jobs conflict.
	a, b := s.pool, other.pool
	overlap := slices.ContainsFunc(a.EnabledWorkflowTypes,
		func(kind string) bool { return slices.Contains(b.EnabledWorkflowTypes, kind) })
	if a.ServiceURL != b.ServiceURL || !overlap {
		return false
	}

	sameFile := a.TokenFile != "" && filepath.Clean(a.TokenFile) == filepath.Clean(b.TokenFile)
	switch {
	case a.OIDCTokenFile != "" && b.OIDCTokenFile != "":
		if a.RunnerPoolID != "" && a.RunnerPoolID == b.RunnerPoolID && a.OrganizationName == b.OrganizationName {
			s.refuse(position.RulePools,
				fmt.Sprintf("the pool on line %d has the same runner_pool_id for the same kinds of jobs",
					other.entry.At.Line),
				"give each its own runner_pool_id, or different jobs in enabled_workflow_types",
				"runner_pool_id", "name")
			return true
		}
	case a.OIDCTokenFile == "" && b.OIDCTokenFile == "" && a.Token == b.Token && (!a.Token.Empty() || sameFile):
		key := "token"
		if _, set := s.origins["token"]; !set {
			key = "token_file"
		}
		s.refuse(position.RulePools,
			fmt.Sprintf("the pool on line %d has the same token for the same kinds of jobs", other.entry.At.Line),
			"give each pool its own token, or different jobs in enabled_workflow_types", key, "name")
		return true
	}
	return false
}

// pollRate warns if all pools together poll more often than a service accepts.
func (l *load) pollRate() {
	const most = 10.0
	perSecond := 0.0
	for _, s := range l.pools {
		if s.pool.PollingInterval > 0 {
			perSecond += 1 / s.pool.PollingInterval.Seconds()
		}
	}
	if perSecond > most {
		l.pools[0].warn(position.RulePollRate,
			fmt.Sprintf("all pools together poll %.0f times per second", perSecond),
			fmt.Sprintf("increase polling_interval: services reject more than %.0f polls per second with status 429",
				most), "polling_interval")
	}
}
