// Package idtoken verifies OIDC ID tokens: it decodes a JWT, verifies its signature with
// the keys of its issuer, and checks its times, its audience, and the claims that the
// operator of the service requires. It makes no calls: keys come from files.
//
// # Required claims
//
// An operator trusts an issuer with a text of the form
//
//	URL=JWKS_FILE[,NAME=PATTERN]...[,pool=POOL]
//
// which [ParseIssuer] reads. The parts are one record of CSV, as in Docker's --mount: a
// part with a comma is written in double quotes. A token must have every claim that the
// text names; pool is no claim, but limits the tokens to one pool. In a pattern, a star
// matches any characters, also none, and everything else matches itself. A claim that is a
// list matches if one of its elements does; numbers and booleans match as JSON writes
// them. A name with dots is the name of a claim, or else of a member of a claim that is an
// object, such as kubernetes.io.namespace.
//
// The same issuer may be given more than once, each time with claims or a pool. A token must
// then satisfy at least one of these texts.
//
// # Public issuers
//
// Some issuers sign tokens for every customer of a public service, with any audience that
// the customer wants. Trust in such an issuer is trust in all of its customers. [Open]
// therefore refuses it without a required claim that identifies one of them: see
// publicIssuers.
package idtoken
