package server

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

const (
	userTokens         = "/api/user/tokens"
	organizationTokens = "/api/orgs/organization/tokens"
)

// accessTokens returns the tokens of a list, by description or name.
func (w *world) accessTokens(path string) map[string]accessTokenView {
	w.t.Helper()
	var list struct{ Tokens []accessTokenView }
	w.want(200, w.user, "GET", path, nil, &list)
	found := map[string]accessTokenView{}
	for _, one := range list.Tokens {
		found[one.Name+one.Description] = one
	}
	return found
}

func (w *world) newToken(path string, body object) (made newTokenView) {
	w.t.Helper()
	w.want(200, w.user, "POST", path, body, &made)
	return made
}

// names returns the keys of the tokens that a list has.
func (w *world) names(path string) (names string) {
	w.t.Helper()
	var list struct{ Tokens []accessTokenView }
	w.want(200, w.user, "GET", path, nil, &list)
	for _, one := range list.Tokens {
		names += "," + one.Name + one.Description
	}
	return strings.TrimPrefix(names, ",")
}

// TestUserTokens makes, uses and deletes a token of a user, next to tokens of a pool and of a job, which no list shows.
func TestUserTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newEmptyWorld(t)
		defer w.close()
		p := w.pool("p")
		w.deploy(w.stack("s"), steps(1))
		w.mustClaim(p).definition()

		start := time.Now()
		time.Sleep(time.Hour)
		made := w.newToken(userTokens, object{"description": "for CI", "expires": time.Now().Add(time.Hour).Unix()})
		want := map[string]accessTokenView{
			"made at the first start": {
				Description: "made at the first start", Created: start.UTC(), CreatedBy: "local",
				LastUsed: time.Now().Unix(),
			},
			"for CI": {
				ID: made.ID, Description: "for CI", Created: time.Now().UTC(), CreatedBy: "local",
				Expires: time.Now().Add(time.Hour).Unix(),
			},
		}
		got := w.accessTokens(userTokens)
		first := got["made at the first start"].ID
		if one := want["made at the first start"]; first != "" {
			one.ID = first
			want["made at the first start"] = one
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("tokens (-want +got):\n%s", diff)
		}

		var user userView
		w.want(200, made.Token, "GET", "/api/user", nil, &user)
		if user.GitHubLogin != "local" || user.Token == nil || *user.Token != (tokenInfo{Name: "for CI"}) {
			t.Errorf("the user of the token is %+v, %+v", user, user.Token)
		}
		w.want(400, made.Token, "DELETE", userTokens+"/"+made.ID, nil, nil) // itself

		time.Sleep(time.Hour)
		w.want(401, made.Token, "GET", "/api/user", nil, nil)
		w.expireAfter(0)
		for filter, want := range map[string]string{
			"": "made at the first start", "?filter=active": "made at the first start", "?filter=expired": "for CI",
			"?filter=all": "for CI,made at the first start",
		} {
			if got := w.names(userTokens + filter); got != want {
				t.Errorf("the list %q is %s, want %s", filter, got, want)
			}
		}
		w.want(400, w.user, "GET", userTokens+"?filter=other", nil, nil)
		w.want(204, w.user, "DELETE", userTokens+"/"+made.ID, nil, nil)
		w.want(404, w.user, "DELETE", userTokens+"/"+made.ID, nil, nil)
		if got := w.names(userTokens + "?filter=all"); got != "made at the first start" {
			t.Errorf("after the deletion: %s", got)
		}

		lasting := w.newToken(userTokens, object{})
		w.want(204, lasting.Token, "DELETE", userTokens+"/"+first, nil, nil)
		w.want(401, w.user, "GET", "/api/user", nil, nil)
	})
}

func TestOrganizationTokens(t *testing.T) {
	w := newWorld(t)
	w.stack("s")
	admin := w.newToken(organizationTokens, object{"name": "admin", "description": "d", "admin": true})
	member := w.newToken(organizationTokens, object{"name": "member"})
	if got := w.accessTokens(organizationTokens); len(got) != 2 || !got["admind"].Admin || got["member"].Admin {
		t.Errorf("the tokens are %+v", got)
	}
	if got := w.names(userTokens); got != "made at the first start" {
		t.Errorf("the tokens of the user are %s", got)
	}
	for name, one := range map[string]newTokenView{"admin": admin, "member": member} {
		var user userView
		w.want(200, one.Token, "GET", "/api/user", nil, &user)
		if user.GitHubLogin != "organization" || len(user.Organizations) != 1 || user.Token == nil ||
			*user.Token != (tokenInfo{name, "organization"}) {
			t.Errorf("the user of the token %s is %+v, %+v", name, user, user.Token)
		}
		w.want(200, one.Token, "GET", "/api/stacks/organization/project/s", nil, nil)
		w.want(403, one.Token, "POST", organizationTokens, object{"name": "x"}, nil)
		w.want(403, one.Token, "GET", userTokens, nil, nil)
	}
	w.want(200, admin.Token, "POST", pools, object{"name": "a"}, nil)
	w.want(403, member.Token, "POST", pools, object{"name": "b"}, nil)
	w.want(404, w.user, "DELETE", userTokens+"/"+member.ID, nil, nil) // of the organization
	w.want(204, w.user, "DELETE", organizationTokens+"/"+member.ID, nil, nil)
	w.want(401, member.Token, "GET", "/api/user", nil, nil)
	w.want(409, w.user, "POST", organizationTokens, object{"name": "member"}, nil)
	w.want(404, w.user, "POST", "/api/orgs/none/tokens", object{"name": "x"}, nil)
	w.want(404, w.user, "GET", "/api/orgs/none/tokens", nil, nil)
	w.restart()
	w.want(200, admin.Token, "GET", "/api/user", nil, nil)
}

// TestTokenRequests sends mistakes, and the largest values that are valid.
func TestTokenRequests(t *testing.T) {
	w := newWorld(t)
	now := time.Now()
	for _, test := range []struct {
		code int
		path string
		body any
	}{
		{200, userTokens, object{"description": strings.Repeat("é", maxTokenDescription)}},
		{200, userTokens, object{"expires": now.AddDate(2, 0, 0).Unix()}},
		{400, userTokens, object{"expires": now.AddDate(2, 0, 1).Unix()}},
		{400, userTokens, object{"expires": int64(1) << 62}},
		{400, userTokens, object{"expires": -1}},
		{400, userTokens, object{"expires": now.Unix() - 1}},
		{400, userTokens, object{"expires": "soon"}},
		{400, userTokens, object{"description": strings.Repeat("é", maxTokenDescription+1)}},
		{400, userTokens, object{"description": "a\nb"}},
		{400, userTokens, object{"name": "x"}},
		{400, userTokens, object{"admin": true}},
		{400, userTokens, ""},
		{400, userTokens, "[]"},
		{413, userTokens, strings.Repeat(" ", maxSmallBody+1)},
		{200, organizationTokens, object{"name": strings.Repeat("é", maxTokenName)}},
		{400, organizationTokens, object{"name": strings.Repeat("é", maxTokenName+1)}},
		{400, organizationTokens, object{"name": "a\x00"}},
		{400, organizationTokens, object{"name": " "}},
		{400, organizationTokens, object{}},
		{400, organizationTokens, object{"name": "role", "roleID": "1"}},
		{200, organizationTokens, object{"name": "'; DROP TABLE tokens; --"}},
	} {
		got := w.ask(w.user, "POST", test.path, test.body)
		if got.code != test.code {
			t.Errorf("%s %.60s: %d %s, want %d", test.path, fmt.Sprint(test.body), got.code, got.body, test.code)
		}
	}
	if got := len(w.accessTokens(userTokens)) + len(w.accessTokens(organizationTokens)); got != 1+2+2 {
		t.Errorf("there are %d tokens, want 5", got)
	}
}

// TestRecordUse uses a token several times a minute.
func TestRecordUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.close()
		made := w.newToken(userTokens, object{"description": "d"})
		start := time.Now()
		for _, test := range []struct{ wait, want time.Duration }{ // want is lastUsed after start
			{0, 0}, {59 * time.Second, 0}, {time.Second, time.Minute}, {59 * time.Second, time.Minute},
			{time.Hour, time.Hour + 119*time.Second},
		} {
			time.Sleep(test.wait)
			w.want(200, made.Token, "GET", "/api/user", nil, nil)
			if got := w.accessTokens(userTokens)["d"].LastUsed; got != start.Add(test.want).Unix() {
				t.Errorf("%v after the start, the token was last used after %d s, want %v",
					time.Since(start), got-start.Unix(), test.want)
			}
		}
	})
}
