package main

import (
	"encoding/json"
	"testing"

	"cuelang.org/go/cue/cuecontext"
)

func TestSchemaPrintsJSONOrCUE(t *testing.T) {
	var document map[string]any
	if err := json.Unmarshal([]byte(tell(nil, "schema").stdout), &document); err != nil || document["$schema"] == nil {
		t.Errorf("%v, %v", document["$schema"], err)
	}
	cue := tell(nil, "schema", "--format", "cue")
	if err := cuecontext.New().CompileString(cue.stdout).Err(); err != nil || cue.code != 0 {
		t.Error(err)
	}
}
