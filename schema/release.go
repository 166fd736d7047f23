package schema

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/cmwa-project/cmwa/schema/position"
)

// release refuses what the release cannot carry out.
func (s *scope) release() {
	r := s.load.source.Release
	target := s.pool.DeployTarget
	if r.Targets != nil && s.good("deploy_target") && !slices.Contains(r.Targets, target) {
		message := fmt.Sprintf("%s is not in this release; it has %s", target, words(r.Targets, "and"))
		s.about(position.Error, position.RuleRelease, message, "", "deploy_target")
	}
	carriedOut := func(kind string) bool { return slices.Contains(r.Kinds, kind) }
	if r.Kinds != nil && s.good("enabled_workflow_types") && !slices.ContainsFunc(s.pool.EnabledWorkflowTypes, carriedOut) {
		message := fmt.Sprintf("must contain %s, as this release claims nothing else", words(r.Kinds, "or"))
		s.about(position.Error, position.RuleRelease, message, "", "enabled_workflow_types")
	}
}

// address refuses what looks like an IP address and is none.
func (s *scope) address(text string) {
	if !s.good("http_server_address") || !strings.Contains(text, ":") && strings.Trim(text, "0123456789.") != "" || text == "" {
		return
	}
	if _, err := netip.ParseAddr(text); err != nil {
		s.about(position.Error, position.RuleValue, "must be "+s.load.schema.byKey["http_server_address"].sentence(), "", "http_server_address")
	}
}
