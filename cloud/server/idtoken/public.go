package idtoken

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
)

// publicIssuer is an issuer that signs tokens for all customers of a public service.
type publicIssuer struct {
	host string

	// shared contains the first segments of those URL paths that belong to no single customer.
	// The segment of a URL without a path is "".
	shared []string

	// owners contains the claims that identify a customer. The number is how many whole parts
	// a pattern must have before its first star: see publicIssuers.
	owners map[string]int

	example string // required claim that identifies a customer
}

// exact is for a claim whose pattern must not have a star.
const exact = 0

// publicIssuers returns the known public issuers, with the claims that each documents. The
// parts of a value end in a slash or a colon. For example, the sub of GitHub Actions begins
// with "repo:", the owner and a slash: a star may follow these two parts. An earlier star
// would match the names of other owners.
func publicIssuers() []publicIssuer {
	root := []string{""}
	return []publicIssuer{
		// GitHub documentation, "OpenID Connect reference". An enterprise has a path of its own.
		{"token.actions.githubusercontent.com", root, map[string]int{
			"sub": 2, "repository": 1, "repository_id": exact, "repository_owner": exact, "repository_owner_id": exact,
			"enterprise": exact, "enterprise_id": exact,
		}, "sub=repo:acme/*"},
		// GitLab documentation, "OpenID Connect (OIDC) authentication using ID tokens".
		{"gitlab.com", root, map[string]int{
			"sub": 2, "project_path": 1, "project_id": exact, "namespace_path": 1, "namespace_id": exact,
		}, "sub=project_path:acme/*"},
		// Google Identity documentation, "OpenID Connect". A sub is a number without parts.
		{"accounts.google.com", root, map[string]int{
			"sub": exact, "hd": exact,
		}, "sub=104029292853099978293"},
		// HCP Terraform documentation, "Workload identity tokens".
		{"app.terraform.io", root, map[string]int{
			"sub": 2, "terraform_organization_id": exact, "terraform_organization_name": exact,
			"terraform_workspace_id": exact,
		}, "sub=organization:acme:*"},
		// Microsoft identity platform documentation, "Access tokens": each tenant has a path of its
		// own. PersonalAccounts is the tenant of all personal accounts.
		{"login.microsoftonline.com", []string{"", "common", "organizations", "consumers", personalAccounts},
			map[string]int{"sub": exact, "oid": exact}, "sub=…"},
		{"sts.windows.net", []string{"", "common", personalAccounts},
			map[string]int{"sub": exact, "oid": exact}, "sub=…"},
		// CircleCI documentation, "Using OpenID Connect tokens in jobs": each organization has the
		// path /org/ID.
		{"oidc.circleci.com", root, map[string]int{
			"sub": 2, "oidc.circleci.com/project-id": exact,
		}, "sub=org/ID/*"},
		// Buildkite documentation, "OIDC in Buildkite Pipelines".
		{"agent.buildkite.com", root, map[string]int{
			"sub": 2, "organization_slug": exact, "organization_id": exact, "pipeline_id": exact, "cluster_id": exact,
		}, "sub=organization:acme:*"},
		// Pulumi documentation, "OpenID Connect integration".
		{"api.pulumi.com", []string{"", "oidc"}, map[string]int{
			"sub": 4, "org": exact,
		}, "sub=pulumi:deploy:org:acme:*"},
		// Vercel documentation, "OIDC federation reference". A team may have a path of its own.
		{"oidc.vercel.com", root, map[string]int{
			"sub": 2, "owner": exact, "owner_id": exact, "project_id": exact,
		}, "sub=owner:acme:*"},
	}
}

// personalAccounts is Microsoft's tenant of all personal accounts.
const personalAccounts = "9188040d-6c67-4c5b-b112-36a304b66dad"

// checkPublic refuses a public issuer without a required claim that identifies one of its
// customers.
func checkPublic(option Issuer, parsed *url.URL) error {
	host := strings.TrimSuffix(strings.ToLower(parsed.Hostname()), ".")
	directory, _, _ := strings.Cut(strings.Trim(parsed.Path, "/"), "/")
	all := publicIssuers()
	at := slices.IndexFunc(all, func(p publicIssuer) bool { return p.host == host })
	if at < 0 || !slices.Contains(all[at].shared, strings.ToLower(directory)) {
		return nil
	}

	public, broad, hint := all[at], "", ""
	for _, claim := range option.Claims {
		parts, known := public.owners[claim.Name]
		switch {
		case known && identifies(claim.Pattern, parts):
			return nil
		case known && parts == exact:
			broad, hint = claim.String(), "write its whole value, without a star"
		case known:
			broad, hint = claim.String(), "write your whole name before the star, as in "+public.example
		}
	}
	if broad != "" {
		return fmt.Errorf("OIDC issuer %s: %s also matches tokens of other customers of %s: %s", option.URL, broad,
			host, hint)
	}
	return fmt.Errorf("OIDC issuer %s signs tokens for every customer of %s: require a claim that identifies yours, "+
		"such as --oidc-issuer '%s=JWKS_FILE,%s' (one of %s)", option.URL, host, option.URL, public.example,
		strings.Join(slices.Sorted(maps.Keys(public.owners)), ", "))
}

// identifies reports whether a pattern has no star, or has at least the given number of whole
// parts before its first star. If parts is exact, it reports whether the pattern has no star.
func identifies(pattern string, parts int) bool {
	head, _, star := strings.Cut(pattern, "*")
	if !star {
		return true
	}
	if parts == exact {
		return false
	}
	for range parts {
		end := strings.IndexAny(head, "/:")
		if end <= 0 {
			return false
		}
		head = head[end+1:]
	}
	return true
}
