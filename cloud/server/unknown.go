package server

import "strings"

// missingFeatures are parts of Pulumi Cloud that this service does not have, by a part of their paths.
var missingFeatures = map[string]string{
	"environments": "environments (Pulumi ESC)", "esc": "environments (Pulumi ESC)",
	"insights": "Insights", "discovery": "Insights",
	"policypacks": "policy packs", "policygroups": "policy packs", "policyresults": "policy packs",
	"search": "search", "resources": "search",
	"hooks": "webhooks", "schedules": "schedules", "drift": "drift detection on a schedule",
	"auditlogs": "audit logs",
	"members":   "people and rights", "teams": "people and rights", "roles": "people and rights",
	"registry": "a registry", "templates": "templates", "ai": "AI agents", "neo": "AI agents", "copilot": "AI agents",
	"saml": "sign-in with SAML", "transfer": "the transfer of stacks", "log-encryption-session": "encrypted logs",
}

// unknown answers a call that no other route has.
func (s *Server) unknown(c *call) (reply, error) {
	parts := strings.Split(strings.TrimPrefix(c.URL.Path, "/api/"), "/")
	// Names of organizations, projects and stacks are no features.
	if names := map[string]int{"orgs": 2, "stacks": 4}[parts[0]]; len(parts) > names {
		parts = parts[names:]
	}
	for _, part := range parts {
		if feature, ok := missingFeatures[part]; ok {
			return reply{}, notFound("this service does not have %s: %s %s", feature, c.Method, c.URL.Path)
		}
	}
	return reply{}, notFound("unknown path or method: %s %s", c.Method, c.URL.Path)
}
