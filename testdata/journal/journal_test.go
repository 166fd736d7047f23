// Package journal compares cloud/server/state with Pulumi's own library. It is a module of its own, so that the
// library, which contains the whole engine, is no dependency of the service. state is a link to cloud/server/state: as
// a part of this module, its dependencies do not change the versions that Pulumi is built with.
package journal

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pulumi/pulumi/pkg/v3/backend"
	"github.com/pulumi/pulumi/pkg/v3/resource/edit"
	"github.com/pulumi/pulumi/sdk/v3/go/common/apitype"
	"github.com/pulumi/pulumi/sdk/v3/go/common/resource"
	"github.com/pulumi/pulumi/sdk/v3/go/common/tokens"
	"pgregory.net/rapid"

	"github.com/cmwa-project/cmwa/testdata/journal/state"
)

// TestReplay replays random journals with this service and with Pulumi's library. Entries that the service refuses are
// left out: the library ignores them or panics.
func TestReplay(t *testing.T) {
	accepted, refused, compared, failed := map[apitype.JournalEntryKind]int{}, 0, 0, 0
	rapid.Check(t, func(t *rapid.T) {
		base := apitype.TypedDeployment{Version: 3, Deployment: drawDeployment(t, "base")}
		ours := state.NewJournal(decode(t, base))
		theirs := backend.NewJournalReplayer(clone(t, base).Deployment)
		made := false
		for i := range rapid.IntRange(0, 15).Draw(t, "entries") {
			entry := drawEntry(t, int64(i+1))
			text, err := json.Marshal(apitype.JournalEntries{Entries: []apitype.JournalEntry{entry}})
			if err != nil {
				t.Fatal(err)
			}
			entries, err := state.Entries(text)
			if err == nil {
				err = ours.Add(entries[0])
			}
			if err != nil {
				refused++
				continue
			}
			accepted[entry.Kind]++
			made = made || entry.Kind == apitype.JournalEntryKindSuccess && entry.State != nil
			if safely(func() error { return theirs.Add(clone(t, entry)) }) != nil {
				failed++
				return
			}
			if made && entry.Kind == apitype.JournalEntryKindRebuiltBaseState {
				break // as in the client; the library would compute wrong indices for the next entries
			}
		}
		var want apitype.TypedDeployment
		if safely(func() (err error) { want, err = theirs.GenerateDeployment(); return err }) != nil {
			failed++
			return
		}
		compared++
		var got apitype.TypedDeployment
		if err := json.Unmarshal(ours.Deployment(time.Now(), "").Encode(), &got); err != nil {
			t.Fatal(err)
		}
		if got, want := comparable(t, got), comparable(t, want); got != want {
			t.Fatalf("this service:\n%s\nPulumi's library:\n%s", got, want)
		}
	})
	for kind := apitype.JournalEntryKindBegin; kind <= apitype.JournalEntryKindSnippets; kind++ {
		if accepted[kind] == 0 {
			t.Errorf("no journal with an entry of kind %s was compared", kind)
		}
	}
	if refused == 0 {
		t.Error("no entry was refused")
	}
	if compared < failed {
		t.Errorf("the library failed %d times, and only %d states were compared", failed, compared)
	}
	t.Logf("compared %d states of %v entries; refused %d entries; the library failed %d times",
		compared, accepted, refused, failed)
}

// safely also returns the failure of an assertion of the library. The library fails, and the service does not, if two
// resources claim one alias, and if a provider gets the URN of a resource that is no provider.
func safely(call func() error) (err error) {
	defer func() {
		if failure := recover(); failure != nil {
			err = fmt.Errorf("%v", failure)
		}
	}()
	return call()
}

// comparable returns a deployment as text, without its manifest, and with the operations in a fixed order.
func comparable(t *rapid.T, d apitype.TypedDeployment) string {
	d = clone(t, d)
	d.Deployment.Manifest = apitype.ManifestV1{}
	text := func(o apitype.OperationV2) string { return fmt.Sprint(o) }
	slices.SortFunc(d.Deployment.PendingOperations, func(a, b apitype.OperationV2) int {
		return strings.Compare(text(a), text(b))
	})
	indented, err := json.MarshalIndent(d, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return string(indented)
}

func decode(t *rapid.T, d apitype.TypedDeployment) *state.Deployment {
	text, err := json.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	decoded, err := state.Decode(text)
	if err != nil {
		t.Fatal(err)
	}
	return decoded
}

// clone returns a deep copy, because the library changes its arguments.
func clone[T any](t *rapid.T, value T) T {
	text, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	var other T
	if err := json.Unmarshal(text, &other); err != nil {
		t.Fatal(err)
	}
	return other
}

const provider = "pulumi:providers:pkg::p"

// drawURN draws one of a few URNs, so that references often hit.
func drawURN(t *rapid.T, label string) resource.URN {
	names := []string{"a", "b", "c", "d", "e", "pkg:m:P$pkg:m:T::f", "pulumi:pulumi:Stack::web-dev", provider}
	name := rapid.SampledFrom(names).Draw(t, label)
	if !strings.Contains(name, "::") {
		name = "pkg:m:T::" + name
	}
	return resource.URN("urn:pulumi:dev::web::" + name)
}

// sometimes draws a value in one of three cases, and otherwise returns the zero value.
func sometimes[T any](t *rapid.T, label string, draw func() T) (value T) {
	if rapid.IntRange(0, 2).Draw(t, "with "+label) == 0 {
		return draw()
	}
	return value
}

func drawURNs(t *rapid.T, label string) func() []resource.URN {
	return func() []resource.URN {
		urns := make([]resource.URN, rapid.IntRange(0, 3).Draw(t, label+" count"))
		for i := range urns {
			urns[i] = drawURN(t, label)
		}
		return urns
	}
}

func drawResource(t *rapid.T, label string) *apitype.ResourceV3 {
	urn := func(name string) func() resource.URN {
		return func() resource.URN { return drawURN(t, name) }
	}
	yes := func() bool { return true }
	r := &apitype.ResourceV3{
		URN: drawURN(t, label), Type: "pkg:m:T", Custom: true,
		ID:                  resource.ID(rapid.SampledFrom([]string{"", "1", "2"}).Draw(t, "id")),
		Outputs:             map[string]any{"x": rapid.IntRange(0, 9).Draw(t, "output")},
		Parent:              sometimes(t, "parent", urn("parent")),
		Dependencies:        sometimes(t, "dependencies", drawURNs(t, "dependency")),
		ReplaceWith:         sometimes(t, "replaceWith", drawURNs(t, "replaceWith")),
		DeletedWith:         sometimes(t, "deletedWith", urn("deletedWith")),
		ViewOf:              sometimes(t, "viewOf", urn("viewOf")),
		Delete:              sometimes(t, "delete", yes),
		PendingReplacement:  sometimes(t, "pendingReplacement", yes),
		Taint:               sometimes(t, "taint", yes),
		RefreshBeforeUpdate: sometimes(t, "refreshBeforeUpdate", yes),
		SnippetID:           sometimes(t, "snippetID", func() string { return "u" }),
		ExtensionRef:        sometimes(t, "extensionRef", func() apitype.ExtensionRef { return "r" }),
	}
	if rapid.IntRange(0, 9).Draw(t, "with aliases") == 0 {
		r.Aliases = drawURNs(t, "alias")()
	}
	if rapid.Bool().Draw(t, "with provider") {
		r.Provider = "urn:pulumi:dev::web::" + provider + "::id"
	}
	if rapid.Bool().Draw(t, "with property dependencies") {
		r.PropertyDependencies = map[resource.PropertyKey][]resource.URN{
			"p": drawURNs(t, "dependency of p")(), "q": drawURNs(t, "dependency of q")(),
		}
	}
	if rapid.IntRange(0, 5).Draw(t, "with hooks") == 0 {
		r.ResourceHooks = map[resource.HookType][]string{"before-create": {"h"}}
	}
	return r
}

func drawOperation(t *rapid.T) *apitype.OperationV2 {
	types := []apitype.OperationType{
		apitype.OperationTypeCreating, apitype.OperationTypeUpdating, apitype.OperationTypeDeleting,
	}
	return &apitype.OperationV2{
		Resource: *drawResource(t, "resource of an operation"),
		Type:     rapid.SampledFrom(types).Draw(t, "operation"),
	}
}

func drawSnippets(t *rapid.T) []apitype.SnippetV1 {
	references := map[string]string{"r": string(drawURN(t, "reference"))}
	return []apitype.SnippetV1{{UUID: "u", Name: "n", References: references}}
}

func drawProvider(t *rapid.T) *apitype.SecretsProvidersV1 {
	url := rapid.SampledFrom([]string{"http://a", "http://b"}).Draw(t, "url")
	return &apitype.SecretsProvidersV1{Type: "service", State: json.RawMessage(fmt.Sprintf(`{"url":%q}`, url))}
}

func drawExtension(t *rapid.T) *apitype.Extension {
	name := rapid.SampledFrom([]string{"n", "m"}).Draw(t, "extension")
	return &apitype.Extension{Name: name, Version: "1", Value: []byte(name)}
}

// drawDeployment draws a deployment with a secrets provider: without one, the service keeps that of the base.
func drawDeployment(t *rapid.T, label string) *apitype.DeploymentV3 {
	d := &apitype.DeploymentV3{
		SecretsProviders: drawProvider(t),
		Snippets:         sometimes(t, "snippets", func() []apitype.SnippetV1 { return drawSnippets(t) }),
	}
	for range rapid.IntRange(0, 4).Draw(t, "resources of "+label) {
		d.Resources = append(d.Resources, *drawResource(t, "resource of "+label))
	}
	for range rapid.IntRange(0, 2).Draw(t, "operations of "+label) {
		d.PendingOperations = append(d.PendingOperations, *drawOperation(t))
	}
	if rapid.Bool().Draw(t, "with extensions") {
		d.Extensions = map[apitype.ExtensionRef]apitype.Extension{"r": *drawExtension(t)}
	}
	return d
}

// drawEntry draws an entry, which may refer to resources and operations that do not exist.
func drawEntry(t *rapid.T, sequence int64) apitype.JournalEntry {
	kinds := []apitype.JournalEntryKind{0, 1, 1, 1, 1, 2, 3, 3, 4, 5, 6, 7, 8, 9}
	e := apitype.JournalEntry{
		Version: 1, SequenceID: sequence, Kind: rapid.SampledFrom(kinds).Draw(t, "kind"),
		OperationID:        rapid.Int64Range(0, 9).Draw(t, "operation ID"),
		IsRefresh:          rapid.IntRange(0, 5).Draw(t, "isRefresh") == 0,
		RequiresByteString: rapid.IntRange(0, 9).Draw(t, "requiresByteString") == 0,
	}
	for range rapid.IntRange(0, 2).Draw(t, "references") {
		number := rapid.Int64Range(0, 3).Draw(t, "index or operation ID")
		*rapid.SampledFrom([]**int64{
			&e.RemoveOld, &e.RemoveNew, &e.DeleteOld, &e.DeleteNew, &e.PendingReplacementOld, &e.PendingReplacementNew,
		}).Draw(t, "reference") = &number
	}
	if rapid.IntRange(0, 3).Draw(t, "without state") > 0 {
		e.State = drawResource(t, "state")
	}
	switch e.Kind {
	case apitype.JournalEntryKindBegin:
		e.Operation = sometimes(t, "operation", func() *apitype.OperationV2 { return drawOperation(t) })
	case apitype.JournalEntryKindRefreshSuccess, apitype.JournalEntryKindOutputs:
		// A client replaces one resource. If an entry replaces two, they share their state in the library, so that a
		// later entry which deletes the new one marks both.
		if e.RemoveOld != nil {
			e.RemoveNew = nil
		}
	case apitype.JournalEntryKindWrite:
		e.NewSnapshot = drawDeployment(t, "new base")
	case apitype.JournalEntryKindSecretsManager:
		e.SecretsProvider = drawProvider(t)
	case apitype.JournalEntryKindExtensionParameterize:
		ref := rapid.SampledFrom([]apitype.ExtensionRef{"r", "s"}).Draw(t, "extension")
		e.ExtensionRef, e.Extension = &ref, drawExtension(t)
	case apitype.JournalEntryKindSnippets:
		e.Snippets = sometimes(t, "snippets", func() []apitype.SnippetV1 { return drawSnippets(t) })
	}
	return e
}

// TestRename renames random deployments with this service and with Pulumi's library.
func TestRename(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		before := apitype.TypedDeployment{Version: 3, Deployment: drawDeployment(t, "deployment")}
		before.Deployment.Snippets = nil // the library forgets to rename their references
		for i := range before.Deployment.Resources {
			before.Deployment.Resources[i].Inputs = map[string]any{"list": []any{map[string]any{
				resource.SigKey: resource.ResourceReferenceSig, "urn": string(drawURN(t, "input")), "id": "1",
			}}}
		}
		to := state.Name{
			Project: rapid.SampledFrom([]string{"web", "shop"}).Draw(t, "project"),
			Stack:   rapid.SampledFrom([]string{"dev", "prod"}).Draw(t, "stack"),
		}
		stack, err := tokens.ParseStackName(to.Stack)
		if err != nil {
			t.Fatal(err)
		}
		dev, err := tokens.ParseStackName("dev")
		if err != nil {
			t.Fatal(err)
		}
		want := clone(t, before)
		options := edit.RenameStackOptions{OldName: dev, OldProject: "web"}
		if err := edit.RenameStack(want.Deployment, stack, tokens.PackageName(to.Project), options); err != nil {
			t.Fatal(err)
		}
		var got apitype.TypedDeployment
		renamed := state.Rename(decode(t, before), state.Name{Project: "web", Stack: "dev"}, to)
		if err := json.Unmarshal(renamed.Encode(), &got); err != nil {
			t.Fatal(err)
		}
		got.Deployment.SecretsProviders = want.Deployment.SecretsProviders // the library does not rename it
		if got, want := comparable(t, got), comparable(t, want); got != want {
			t.Fatalf("this service:\n%s\nPulumi's library:\n%s", got, want)
		}
	})
}
