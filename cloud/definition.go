package cloud

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
)

// Limits of a definition. A definition of Pulumi Cloud has less than ten steps and some dozen
// variables. Without limits, a definition of [maxDefinition] bytes could take the memory of an
// agent with all its jobs: a step of two bytes, or a variable of eight, needs some hundred bytes
// when it is decoded.
const (
	maxSteps     = 10_000
	maxVariables = 10_000
	maxField     = 64 << 10 // bytes of the JSON of the image with its login, and of each other field of the agent
)

// agentDefinition is the part of a [Definition] that the agent needs. Decoding a step into an empty
// struct needs no memory.
type agentDefinition struct {
	Image        Image      `json:"image"`
	OS           string     `json:"os"`
	Architecture string     `json:"architecture"`
	Timeout      Duration   `json:"timeout"`
	Steps        []struct{} `json:"steps"`
}

// ReadDefinition returns what the agent needs of a job's definition. The result keeps text, because
// the runner may support fields that this release of the agent does not. An agent decodes no script
// and no variable, so the memory that it needs does not depend on them. Errors contain no values.
func ReadDefinition(text []byte) (runtime.Definition, error) {
	var d agentDefinition
	if err := decodeDefinition(text, &d); err != nil {
		return runtime.Definition{}, err
	}
	if len(d.Steps) == 0 {
		return runtime.Definition{}, errNoSteps
	}
	out := runtime.Definition{
		Image:        runtime.Image{Reference: d.Image.Reference, Default: d.Image.IsDefault},
		OS:           d.OS,
		Architecture: d.Architecture,
		Timeout:      time.Duration(d.Timeout),
		Steps:        len(d.Steps),
		Raw:          text,
	}
	if login := d.Image.Credentials; login != nil {
		out.Image.Username, out.Image.Password = login.Username, login.Password.Value
	}
	return out, nil
}

// ParseDefinition decodes a job's definition for the runner. Its errors contain no values.
func ParseDefinition(text []byte) (*Definition, error) {
	var d Definition
	if err := decodeDefinition(text, &d); err != nil {
		return nil, err
	}
	if len(d.Steps) == 0 {
		return nil, errNoSteps
	}
	return &d, nil
}

var errNoSteps = errors.New("the definition of the job has no steps")

// decodeDefinition decodes a definition into a struct. It checks the limits first, because decoding
// needs the memory that they save.
func decodeDefinition(text []byte, into any) error {
	var found struct {
		Steps           memberCount `json:"steps"`
		Env             memberCount `json:"env"`
		SecretVariables memberCount `json:"cmwaSecretVariables"`
		Image           fieldLimit  `json:"image"`
		OS              fieldLimit  `json:"os"`
		Architecture    fieldLimit  `json:"architecture"`
		Timeout         fieldLimit  `json:"timeout"`
	}
	err := json.Unmarshal(text, &found)
	switch {
	case err != nil:
	case found.Steps > maxSteps:
		return fmt.Errorf("the definition of the job has more than %d steps", maxSteps)
	case found.Env > maxVariables, found.SecretVariables > maxVariables:
		return fmt.Errorf("the definition of the job has more than %d variables", maxVariables)
	default:
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		return fmt.Errorf("the definition of the job is invalid: %w", err)
	}
	return nil
}

// fieldLimit is a field of any type whose JSON must not be longer than maxField.
type fieldLimit struct{}

// UnmarshalJSON checks the length.
func (fieldLimit) UnmarshalJSON(text []byte) error {
	if len(text) > maxField {
		return fmt.Errorf("its image, os, architecture or timeout is larger than %d KiB", maxField>>10)
	}
	return nil
}

// memberCount is the number of elements of an array or of members of an object, and at least 1. If
// the array or object occurs several times, it is the sum, because each one is decoded.
type memberCount int

// UnmarshalJSON counts the commas between members. It needs no memory. Text is valid JSON.
func (n *memberCount) UnmarshalJSON(text []byte) error {
	*n++
	depth, quoted := 0, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '[', c == '{':
			depth++
		case c == ']', c == '}':
			depth--
		case c == ',' && depth == 1:
			*n++
		}
	}
	return nil
}
