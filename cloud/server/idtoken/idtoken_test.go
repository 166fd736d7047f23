package idtoken

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/cmwa-project/cmwa/schema/secret"
)

const (
	issuerURL = "https://issuer.example"
	audience  = "urn:pulumi:org:organization"
)

// signer is an OIDC provider with one RSA key.
type signer struct {
	t   testing.TB
	key *rsa.PrivateKey
}

func newSigner(t testing.TB) signer {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	return signer{t, key}
}

func b64(raw []byte) string { return base64.RawURLEncoding.EncodeToString(raw) }

// jwks returns the document with the key.
func (s signer) jwks() []byte {
	return fmt.Appendf(nil, `{"keys":[{"kty":"RSA","n":%q,"e":"AQAB"}]}`, b64(s.key.N.Bytes()))
}

// token returns a token with claims, which are members of a JSON object.
func (s signer) token(claims string) secret.String {
	s.t.Helper()
	signed := b64([]byte(`{"alg":"RS256"}`)) + "." + b64([]byte("{"+claims+"}"))
	sum := sha256.Sum256([]byte(signed))
	signature, err := rsa.SignPKCS1v15(nil, s.key, crypto.SHA256, sum[:])
	if err != nil {
		s.t.Fatal(err)
	}
	return secret.New(signed + "." + b64(signature))
}

// check checks a token with claims for an issuer in the form of ParseIssuer.
func (s signer) check(claims string, conditions ...string) (Grant, error) {
	s.t.Helper()
	var all []Issuer
	for _, text := range conditions {
		issuer, _, err := ParseIssuer(issuerURL + "=file" + text)
		if err != nil {
			s.t.Fatal(err)
		}
		issuer.Keys = s.jwks()
		all = append(all, issuer)
	}
	issuers, err := Open(all)
	if err != nil {
		s.t.Fatal(err)
	}
	token, err := Read(s.token(fmt.Sprintf(`"iss":%q,"aud":%q,"exp":%d,%s`, issuerURL, audience,
		time.Now().Add(time.Hour).Unix(), claims)))
	if err != nil {
		s.t.Fatal(err)
	}
	return issuers.Check(token, audience, time.Now())
}

func TestIssuersCheck(t *testing.T) {
	s := newSigner(t)
	const claims = `"sub":"repo:acme/infra:ref:refs/heads/main","repository_owner":"acme","run":42,"ok":true,` +
		`"none":null,"groups":["dev","ops"],"kubernetes.io":{"namespace":"build","pod":{"name":"a.b"}},` +
		`"a.b":{"c":"d"},"a":{"b":{"c":"x"}}`

	t.Run("a token must have every required claim", func(t *testing.T) {
		for conditions, valid := range map[string]bool{
			"":                 true,
			",sub=repo:acme/*": true,
			",sub=repo:acme/infra:ref:refs/heads/main":      true,
			",sub=repo:*:ref:refs/heads/main":               true,
			",sub=*/infra:*:refs/*main":                     true,
			",sub=*":                                        true,
			",sub=repo:acme/*,repository_owner=acme":        true,
			",sub=repo:acme/*,repository_owner=other":       false,
			",sub=repo:acme/*,sub=*:ref:refs/heads/main":    true,
			",sub=repo:acme/*,sub=*:ref:refs/heads/release": false,
			",sub=repo:other/*":                             false,
			",sub=repo:acme":                                false,
			",sub=acme/*":                                   false,
			",sub=REPO:acme/*":                              false,
			",Sub=*":                                        false,
			",missing=*":                                    false,
			",none=*":                                       false,
			",groups=ops":                                   true,
			",groups=o*":                                    true,
			",groups=dev,groups=ops":                        true,
			",groups=admin":                                 false,
			`,"groups=[""dev"",""ops""]"`:                   false,
			",run=42":                                       true,
			",run=4":                                        false,
			",ok=true":                                      true,
			",kubernetes.io.namespace=build":                true,
			",kubernetes.io.pod.name=a.b":                   true,
			",kubernetes.io.pod=*":                          false,
			",kubernetes.io=*":                              false,
			",sub.x=*":                                      false,
			",a.b.c=d":                                      true,
			",a.b.c=x":                                      false,
			", sub = repo:acme/*":                           false, // the space is part of the pattern
			", sub=repo:acme/*":                             true,
		} {
			_, err := s.check(claims, conditions)
			if (err == nil) != valid {
				t.Errorf("with %q the token is valid: %v, want %v", conditions, err == nil, valid)
			}
			var refused *Error
			if err != nil && (!errors.As(err, &refused) || strings.Contains(refused.Text, "acme")) {
				t.Errorf("with %q the sender gets %v", conditions, err)
			}
		}
	})

	t.Run("the detail for the log has the claim and the required pattern", func(t *testing.T) {
		_, err := s.check(`"sub":"repo:evil/x\n`+strings.Repeat("y", 5000)+`"`, ",sub=repo:acme/*")
		var refused *Error
		if !errors.As(err, &refused) || !strings.HasPrefix(refused.Detail, `claim sub is ["repo:evil/x\ny`) ||
			!strings.HasSuffix(refused.Detail, "--oidc-issuer requires repo:acme/*") || len(refused.Detail) > 400 {
			t.Errorf("the error is %+v", refused)
		}
	})

	t.Run("a token is valid for the pools of all entries that it matches", func(t *testing.T) {
		entries := []string{",sub=repo:acme/infra:*,pool=infra", ",sub=repo:acme/*,pool=0-1", ",sub=repo:other/*"}
		grant, err := s.check(`"sub":"repo:acme/infra:x"`, entries...)
		if err != nil || !grant.Allows("5", "infra") || !grant.Allows("0-1", "x") || grant.Allows("5", "web") {
			t.Errorf("acme/infra gets %+v: %v", grant, err)
		}
		grant, err = s.check(`"sub":"repo:acme/web:x"`, entries...)
		if err != nil || grant.Allows("5", "infra") || !grant.Allows("0-1", "x") {
			t.Errorf("acme/web gets %+v: %v", grant, err)
		}
		grant, err = s.check(`"sub":"repo:other/web:x"`, entries...)
		if err != nil || !grant.Allows("5", "infra") {
			t.Errorf("other/web gets %+v: %v", grant, err)
		}
		if _, err := s.check(`"sub":"repo:evil/web:x"`, entries...); err == nil {
			t.Error("evil/web is valid")
		}
	})

	t.Run("a token may be exchanged for the access tokens of all entries that it matches", func(t *testing.T) {
		entries := []string{
			",sub=repo:acme/infra:*,token=admin", ",sub=repo:acme/*,token=user:me", ",sub=repo:acme/web:*,token=member",
		}
		for sub, want := range map[string]string{
			"repo:acme/infra:x": "member admin user:me", "repo:acme/web:x": "member user:me", "repo:acme/x": "user:me",
		} {
			grant, err := s.check(`"sub":"`+sub+`"`, entries...)
			if err != nil || grant.Allows("5", "infra") {
				t.Errorf("%s gets %+v: %v", sub, grant, err)
			}
			for _, access := range []string{"member", "admin", "user:me", "user:other", ""} {
				if got := grant.AllowsAccess(access); got != slices.Contains(strings.Fields(want), access) {
					t.Errorf("%s gets %q: %v", sub, access, got)
				}
			}
		}
		if grant, err := s.check(`"sub":"x"`, ",sub=x"); err != nil || grant.AllowsAccess("member") {
			t.Errorf("an entry for pools allows %+v: %v", grant, err)
		}
	})

	t.Run("a member of an object with a duplicate name does not match", func(t *testing.T) {
		if _, err := s.check(`"k":{"n":"a","n":"b"}`, ",k.n=*"); err == nil {
			t.Error("the token is valid")
		}
	})
}

func TestParseIssuer(t *testing.T) {
	t.Run("every form", func(t *testing.T) {
		for text, want := range map[string]struct {
			issuer Issuer
			file   string
		}{
			"https://i.example=keys.json": {Issuer{URL: "https://i.example"}, "keys.json"},
			"https://i.example/t=a=b.json,sub=repo:acme/*,x=a=b,pool=mine": {Issuer{URL: "https://i.example/t",
				Claims: []Claim{{"sub", "repo:acme/*"}, {"x", "a=b"}}, Pool: "mine"}, "a=b.json"},
			`"https://i.example=a,b.json", "dn=cn=x,ou=y"`: {Issuer{URL: "https://i.example",
				Claims: []Claim{{"dn", "cn=x,ou=y"}}}, "a,b.json"},
			"https://i.example=k,sub=x,token=user:me": {Issuer{URL: "https://i.example",
				Claims: []Claim{{"sub", "x"}}, Access: "user:me"}, "k"},
			`https://i.example=k,oidc.circleci.com/project-id=1`: {Issuer{URL: "https://i.example",
				Claims: []Claim{{"oidc.circleci.com/project-id", "1"}}}, "k"},
		} {
			issuer, file, err := ParseIssuer(text)
			if diff := cmp.Diff(want.issuer, issuer); err != nil || diff != "" || file != want.file {
				t.Errorf("%s: file %s, %v\n%s", text, file, err, diff)
			}
		}
	})

	t.Run("mistakes", func(t *testing.T) {
		for text, want := range map[string]string{
			"":                                  "URL=JWKS_FILE",
			"https://i.example":                 "URL=JWKS_FILE",
			"=keys.json":                        "URL=JWKS_FILE",
			"https://i.example=":                "URL=JWKS_FILE",
			"sub=x,https://i.example=keys.json": "",
			"https://i.example=a,b.json":        `"b.json" is not CLAIM=PATTERN; if the comma`,
			"https://i.example=a,":              "is not CLAIM=PATTERN",
			"https://i.example=a,sub=":          "is not CLAIM=PATTERN",
			"https://i.example=a,=x":            "is not CLAIM=PATTERN",
			"https://i.example=a,pool=x,pool=y": "pool is given twice",
			"https://i.example=a,token=member,token=admin": "token is given twice",
			"https://i.example=a,token=owner":              "token must be member, admin, or user:",
			"https://i.example=a,pool=x,token=admin":       "exclude each other",
			"https://i.example=a\nsub=x":                   "on one line",
			`https://i.example=a,"sub=x`:                   "double quotes",
			`https://i.example=a,s"b=x`:                    "double quotes",
		} {
			issuer, file, err := ParseIssuer(text)
			if want == "" { // ParseIssuer accepts the wrong URL, and Open refuses it
				if _, err = Open([]Issuer{issuer}); err == nil {
					t.Errorf("%s is accepted with the file %s", text, file)
				}
				continue
			}
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%q: %v, want %q", text, err, want)
			}
		}
	})
}

func TestOpenPublicIssuer(t *testing.T) {
	s := newSigner(t)
	const github, circle = "https://token.actions.githubusercontent.com", "https://oidc.circleci.com"
	const microsoft = "https://login.microsoftonline.com/"
	open := func(text string) error {
		issuer, _, err := ParseIssuer(text)
		if err != nil {
			t.Fatal(err)
		}
		issuer.Keys = s.jwks()
		_, err = Open([]Issuer{issuer})
		return err
	}

	t.Run("a public issuer without a claim that identifies an owner is refused", func(t *testing.T) {
		for text, want := range map[string]string{
			github + "=k":     "'" + github + "=JWKS_FILE,sub=repo:acme/*'",
			github + "/=k":    "sub=repo:acme/*",
			github + ".=k":    "sub=repo:acme/*",
			github + ":443=k": "sub=repo:acme/*",
			"HTTPS://Token.Actions.GitHubUserContent.com=k":         "sub=repo:acme/*",
			github + "=k,pool=mine":                                 "every customer",
			github + "=k,aud=x,ref=refs/heads/main":                 "every customer",
			github + "=k,job_workflow_ref=acme/x/*":                 "every customer", // other owners can call it
			github + "=k,sub=*":                                     "sub=* also matches tokens of other customers",
			github + "=k,sub=repo:*":                                "also matches",
			github + "=k,sub=repo:acme*":                            "write your whole name before the star, as in",
			github + "=k,sub=*:acme/infra":                          "also matches",
			github + "=k,sub=repo:*/infra:*":                        "also matches",
			github + "=k,repository_owner=acme*":                    "also matches",
			github + "=k,repository=*/infra":                        "also matches",
			"https://gitlab.com=k":                                  "project_path:acme/*",
			"https://gitlab.com=k,namespace_path=acme*":             "also matches",
			"https://accounts.google.com=k":                         "every customer",
			"https://accounts.google.com=k,sub=1*":                  "write its whole value, without a star",
			"https://app.terraform.io=k":                            "organization:acme:*",
			"https://app.terraform.io=k,sub=organization:*":         "also matches",
			"https://agent.buildkite.com=k":                         "organization:acme:*",
			"https://api.pulumi.com/oidc=k":                         "pulumi:deploy:org:acme:*",
			"https://api.pulumi.com/oidc=k,sub=pulumi:deploy:org:*": "also matches",
			"https://oidc.vercel.com=k":                             "owner:acme:*",
			circle + "=k":                                           "org/ID",
			microsoft + "common/v2.0=k":                             "every customer",
			microsoft + personalAccounts + "/v2.0=k":                "every customer",
		} {
			if err := open(text); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", text, err, want)
			}
		}
	})

	t.Run("an issuer with such a claim, or with the path of one customer, is accepted", func(t *testing.T) {
		for _, text := range []string{
			github + "=k,sub=repo:acme/*", github + "=k,sub=repo:acme/infra:*,ref=*",
			github + "=k,repository_owner=acme",
			github + "=k,repository=acme/*", github + "=k,sub=repo:acme@123/*", github + "/my-enterprise=k",
			"https://gitlab.com=k,sub=project_path:acme/*", "https://gitlab.com=k,namespace_id=72",
			"https://gitlab.example.com=k", "https://app.terraform.io=k,terraform_organization_name=acme",
			circle + "/org/0-1=k", circle + "=k,sub=org/0-1/*",
			microsoft + "72f988bf-0000-0000-0000-000000000000/v2.0=k",
			"https://api.pulumi.com/oidc=k,sub=pulumi:deploy:org:acme:*",
			"https://evil.example/token.actions.githubusercontent.com=k",
		} {
			if err := open(text); err != nil {
				t.Errorf("%s: %v", text, err)
			}
		}
	})
}

func FuzzRead(f *testing.F) {
	ours, foreign := newSigner(f), newSigner(f)
	issuers, err := Open([]Issuer{{URL: issuerURL, Keys: ours.jwks()}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(foreign.token(`"iss":"` + issuerURL + `","aud":["a","` + audience + `"],"exp":9e9`).Reveal())
	f.Add(foreign.token(`"aud":["a","b"],"nbf":1.5,"iat":null`).Reveal())
	f.Add(b64([]byte(`{"alg":"none"}`)) + "." + b64([]byte(`{"aud":null,"exp":1e20}`)) + ".")
	f.Fuzz(func(t *testing.T, text string) {
		token, err := Read(secret.New(text))
		if err == nil {
			if text != token.signed+"."+b64(token.signature) {
				t.Fatal("the parts do not make up the token")
			}
			if _, err = issuers.Check(token, audience, time.Now()); err == nil {
				t.Fatal("a token that the issuer has not signed is accepted")
			}
		}
		var refused *Error
		if !errors.As(err, &refused) || refused.Text == "" || refused.Detail != "" {
			t.Fatalf("refused with %#v", err)
		}
		if len(text) > 60 && strings.Contains(err.Error(), text) {
			t.Fatal("the token is in the error")
		}
	})
}

func FuzzParseIssuer(f *testing.F) {
	f.Add("https://i.example=keys.json,sub=repo:acme/*,pool=p")
	f.Add(`"https://i.example=a,b", "x=""1"""`)
	f.Add("\n\nhttps://i.example=a\r\n")
	f.Add("\"\"\"=\r\r\n\"")
	f.Add("\"https://i.example=a\r\nb\"")
	f.Fuzz(func(t *testing.T, text string) {
		issuer, file, err := ParseIssuer(text)
		if err != nil {
			if issuer.URL+file+issuer.Pool+issuer.Access != "" || issuer.Claims != nil {
				t.Fatalf("an error comes with %+v, %q", issuer, file)
			}
			return
		}
		if issuer.URL == "" || file == "" || issuer.Keys != nil || strings.Contains(issuer.URL, "=") {
			t.Fatalf("%q is read as %+v, %q", text, issuer, file)
		}
		for _, claim := range issuer.Claims {
			if claim.Name == "" || claim.Pattern == "" || strings.Contains(claim.Name, "=") || claim.Name == "pool" ||
				claim.Name == "token" {
				t.Fatalf("%q has the claim %+v", text, claim)
			}
		}

		// The same issuer with each part in quotes has the same meaning.
		written := quote(issuer.URL + "=" + file)
		for _, claim := range issuer.Claims {
			written += "," + quote(claim.String())
		}
		if issuer.Pool != "" {
			written += "," + quote("pool="+issuer.Pool)
		}
		if issuer.Access != "" {
			written += "," + quote("token="+issuer.Access)
		}
		again, sameFile, err := ParseIssuer(written)
		if diff := cmp.Diff(issuer, again); err != nil || diff != "" || sameFile != file {
			t.Fatalf("%q was written as %q: %v\n%s", text, written, err, diff)
		}
	})
}

func quote(part string) string { return `"` + strings.ReplaceAll(part, `"`, `""`) + `"` }

func FuzzMatches(f *testing.F) {
	f.Add("repo:acme/*", "repo:acme/infra:x")
	f.Add("a*b*a", "aba")
	f.Add("*ab*ab", "abab")
	f.Add("a*a", "a")
	f.Fuzz(func(t *testing.T, pattern, text string) {
		if len(pattern) > 60 || len(text) > 200 || !utf8.ValidString(pattern) || !utf8.ValidString(text) {
			return
		}
		expression := "(?s)^" + strings.ReplaceAll(regexp.QuoteMeta(pattern), `\*`, ".*") + "$"
		if got, want := matches(pattern, text), regexp.MustCompile(expression).MatchString(text); got != want {
			t.Fatalf("%q matches %q: %v, want %v", pattern, text, got, want)
		}
	})
}

func FuzzMembersFind(f *testing.F) {
	f.Add([]byte(`{"a.b":{"c":[1,"x",null,{}]},"a":{"b.c":true}}`), "a.b.c", "*")
	f.Add([]byte(`{"a":{"a":{"a":"x"}}}`), "a.a.a", "x")
	f.Add([]byte(`{"":{"":""}}`), "..", "*")
	f.Fuzz(func(t *testing.T, text []byte, name, pattern string) {
		m, err := ReadMembers(text)
		if err != nil {
			return
		}
		err = m.check([]Claim{{name, pattern}})
		var refused *Error
		if err != nil && (!errors.As(err, &refused) || len(refused.Detail) > 2000+10*len(text)+len(name)+len(pattern)) {
			t.Fatalf("the error is %v", err)
		}
		if raw, found := m.find(name); err == nil && (!found || len(texts(raw)) == 0) {
			t.Fatalf("%s has no claim %q", text, name)
		}
	})
}
