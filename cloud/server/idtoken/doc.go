// Package idtoken verifies OIDC ID tokens: it decodes a JWT, verifies its signature with
// the keys of its issuer, and checks its times, its audience, and the claims that the
// operator of the service requires. It makes no calls: keys come from files.
//
// # Required claims
//
// An operator names a trusted issuer in a text of the form
//
//	URL=JWKS_FILE[,NAME=PATTERN]...[,pool=POOL | ,token=member|admin|user:NAME]
//
// which [ParseIssuer] reads. The parts are one record of CSV, as in Docker's --mount: a
// part with a comma is written in double quotes. A token must have every claim that the
// text names; pool is no claim, but limits the tokens to one pool. Nor is token, with which the
// tokens are exchanged for access tokens of the organization or of a user, and not for those of
// pools; it requires a claim. In a pattern, a star
// matches any characters, also none, and everything else matches itself. A claim that is a
// list matches if one of its elements matches. Numbers and booleans are compared in the form
// that they have in JSON. A name with dots is the name of a claim. If there is no claim of
// this name, it names a member of a claim that is an object: kubernetes.io.namespace is the
// member namespace of the claim kubernetes.io.
//
// The same issuer may be given more than once, each time with claims or a pool. A token must
// then satisfy at least one of these texts.
//
// # Public issuers
//
// Some issuers sign tokens for every customer of a public service, with any audience that
// the customer requests. A trusted issuer of this kind can authenticate all customers of the
// service. [Open] therefore refuses it, unless a required claim identifies one customer: see
// publicIssuers.
package idtoken
