package runtimetest

import (
	"cmp"
	"encoding/json"
	"fmt"

	"github.com/cmwa-project/cmwa/cloud"
	"github.com/cmwa-project/cmwa/runtime"
)

// Definition returns the definition of a job. After step 0, each step runs one of the scripts
// with sh. The definition leaves the choice of the image to the agent.
func Definition(scripts ...string) runtime.Definition {
	wire := cloud.Definition{
		Image: cloud.Image{Reference: "runtimetest", IsDefault: true},
		Shell: "sh",
		Steps: []cloud.Step{{Name: "Setup"}},
	}
	for i, script := range scripts {
		wire.Steps = append(wire.Steps, cloud.Step{Name: fmt.Sprintf("step %d", i+1), Run: script})
	}
	return DefinitionOf(wire)
}

// DefinitionOf converts a definition of the wire format, as an agent does.
func DefinitionOf(wire cloud.Definition) runtime.Definition {
	raw, err := json.Marshal(wire)
	if err != nil {
		panic(err) // wire types always marshal
	}
	definition, err := cloud.ReadDefinition(raw)
	if err != nil {
		panic(err) // the caller has written an invalid definition
	}
	definition.OS = cmp.Or(definition.OS, "linux")
	return definition
}

// BaseHandoff returns the handoff of an agent for the job, without the fields that a
// [runtime.Setup] adds.
func BaseHandoff(job *runtime.Job) runtime.Handoff {
	return runtime.Handoff{
		Version:    runtime.HandoffVersion,
		Service:    job.Service,
		JobID:      job.ID,
		Token:      job.Token.Reveal(),
		OIDC:       job.OIDC.Reveal(),
		UserAgent:  "runtimetest",
		CA:         job.Tuning.CA,
		Definition: job.Definition.Raw,
		LocalLog:   job.Tuning.Instance.LocalLog,

		CancelGrace: runtime.Seconds(job.Tuning.CancelGrace.Seconds()),
	}
}
