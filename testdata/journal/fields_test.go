package journal

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/pulumi/pulumi/sdk/v3/go/common/apitype"
)

// TestFields fails if a version of Pulumi adds fields to the values that cloud/server/state computes with, or renames
// them. Decide for each new field whether a replay or a rename must change it, then add it here.
func TestFields(t *testing.T) {
	for _, test := range []struct {
		value  any
		fields string
	}{
		{apitype.UntypedDeployment{}, "deployment features version"},
		{apitype.DeploymentV3{}, "extensions manifest metadata pending_operations resources " +
			"secrets_providers snippets"},
		{apitype.SecretsProvidersV1{}, "state type"},
		{apitype.ManifestV1{}, "magic plugins time version"},
		{apitype.OperationV2{}, "resource type"},
		{apitype.SnippetV1{}, "code descriptor name references type uuid"},
		{apitype.ResourceV3{}, "additionalSecretOutputs aliases created custom customTimeouts delete " +
			"deletedWith dependencies extensionRef external hideDiff id ignoreChanges importID initErrors inputs " +
			"modified outputs parent pendingReplacement propertyDependencies protect provider refreshBeforeUpdate " +
			"replaceOnChanges replaceWith replacementTrigger resourceHooks retainOnDelete snippetID " +
			"sourcePosition stackTrace taint type urn viewOf"},
		{apitype.JournalEntries{}, "entries"},
		{apitype.JournalEntry{}, "deleteNew deleteOld extension extensionRef isRefresh kind newSnapshot operation " +
			"operationID pendingReplacementNew pendingReplacementOld removeNew removeOld requiresByteString " +
			"secretsProvider sequenceID snippets state version"},
	} {
		names := fields(reflect.TypeOf(test.value))
		if got := strings.Join(names, " "); got != test.fields {
			t.Errorf("%T has the fields\n  %s\nknown are\n  %s", test.value, got, test.fields)
		}
	}
	if last := apitype.JournalEntryKind(10); last.String() != "invalid" {
		t.Errorf("this version of Pulumi has a journal entry of kind 10, %s", last)
	}
}

// fields returns the names of a struct's fields in JSON, sorted.
func fields(structure reflect.Type) []string {
	var names []string
	for field := range structure.Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
