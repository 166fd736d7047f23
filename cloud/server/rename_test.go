package server

import (
	"slices"
	"strings"
	"testing"
)

// urns returns the URNs and the secrets provider in the state of a stack.
func (w *world) urns(path string) (urns []string, provider map[string]string) {
	w.t.Helper()
	var d struct {
		Deployment struct {
			Resources []struct{ URN string }
			Provider  struct{ State map[string]string } `json:"secrets_providers"`
		}
	}
	w.want(200, w.user, "GET", path, nil, &d)
	for _, r := range d.Deployment.Resources {
		urns = append(urns, r.URN)
	}
	return urns, d.Deployment.Provider.State
}

func TestRenameStack(t *testing.T) {
	w := newWorld(t)
	tags := object{"pulumi:project": "project", "a": "b"}
	w.want(200, w.user, "POST", project, object{"stackName": "s", "tags": tags}, nil)
	w.stack("taken")
	var sealed struct{ Ciphertext []byte }
	w.want(200, w.user, "POST", project+"/s/encrypt", object{"plaintext": []byte("hidden")}, &sealed)
	for range 2 {
		u := w.update("s", object{}).start()
		u.checkpoint(strings.Replace(resources("a"), `"resources"`, `"secrets_providers":{"type":"service","state":`+
			`{"url":"http://example.com","owner":"organization","project":"project","stack":"s"}},"resources"`, 1))
		if u.complete(succeeded) != 204 {
			t.Fatal("the update is not completed")
		}
	}
	var before stackView
	w.want(200, w.user, "GET", project+"/s", nil, &before)

	for name, refused := range map[string]struct {
		code int
		body object
	}{
		"taken name":         {409, object{"newName": "taken"}},
		"invalid name":       {400, object{"newName": "a/b"}},
		"invalid project":    {400, object{"newProject": "-a"}},
		"name of wrong type": {400, object{"newName": 1}},
	} {
		if got := w.ask(w.user, "POST", project+"/s/rename", refused.body); got.code != refused.code {
			t.Errorf("%s: %d %s, want %d", name, got.code, got.body, refused.code)
		}
	}
	running := w.update("s", object{}).start()
	w.want(409, w.user, "POST", project+"/s/rename", object{"newName": "n"}, nil)
	running.complete(succeeded)
	waiting := w.deploy(project+"/s/deployments", steps(1))
	w.want(409, w.user, "POST", project+"/s/rename", object{"newName": "n"}, nil)
	w.want(200, w.user, "POST", project+"/s/deployments/"+waiting+"/cancel", nil, nil)
	if urns, _ := w.urns(project + "/s/export"); !slices.Equal(urns, []string{"urn:pulumi:s::project::a:b:C::a"}) {
		t.Fatalf("after refused calls the state has the URNs %v", urns)
	}

	w.want(204, w.user, "POST", project+"/s/rename", object{"newName": "n", "newProject": "other"}, nil)
	w.want(404, w.user, "GET", project+"/s", nil, nil)
	const renamed = "/api/stacks/organization/other/n"
	var after stackView
	w.want(200, w.user, "GET", renamed, nil, &after)
	if after.ID != before.ID || after.Version != 3 || after.Tags["pulumi:project"] != "other" ||
		after.Tags["a"] != "b" {
		t.Errorf("the renamed stack is %+v, before %+v", after, before)
	}
	urns, provider := w.urns(renamed + "/export")
	if !slices.Equal(urns, []string{"urn:pulumi:n::other::a:b:C::a"}) || provider["project"] != "other" ||
		provider["stack"] != "n" {
		t.Errorf("the state has the URNs %v and the provider %v", urns, provider)
	}
	if urns, _ := w.urns(renamed + "/export/1"); !slices.Equal(urns, []string{"urn:pulumi:s::project::a:b:C::a"}) {
		t.Errorf("version 1 has the URNs %v", urns)
	}
	var opened struct{ Plaintext []byte }
	w.want(200, w.user, "POST", renamed+"/decrypt", sealed, &opened)
	if string(opened.Plaintext) != "hidden" {
		t.Errorf("a secret is decrypted as %q", opened.Plaintext)
	}
	var history struct{ Total int }
	w.want(200, w.user, "GET", renamed+"/updates", nil, &history)
	if history.Total != 3 {
		t.Errorf("the history has %d updates, want 3", history.Total)
	}
	w.want(204, w.user, "POST", renamed+"/rename", object{"newName": "m"}, nil)
	w.want(204, w.user, "POST", project+"/taken/rename", object{"newName": "without-updates"}, nil)
	if urns, _ := w.urns("/api/stacks/organization/other/m/export"); !slices.Equal(urns,
		[]string{"urn:pulumi:m::other::a:b:C::a"}) {
		t.Errorf("after the second rename the state has the URNs %v", urns)
	}
}
