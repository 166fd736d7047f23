package cloud

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/schema/printable"
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
	Image        Image         `json:"image"`
	OS           string        `json:"os"`
	Architecture string        `json:"architecture"`
	Timeout      Duration      `json:"timeout"`
	Steps        []struct{}    `json:"steps"`
	Env          workVariables `json:"env"`
	Secrets      []workName    `json:"cmwaSecretVariables"`
}

// workVariables are the variables that name what a job works on. Other variables are not decoded.
type workVariables struct {
	Organization plainValue `json:"PULUMI_CI_ORGANIZATION"`
	Project      plainValue `json:"PULUMI_CI_PROJECT"`
	Stack        plainValue `json:"PULUMI_CI_STACK"`
	Operation    plainValue `json:"PULUMI_CI_OPERATION"`
	Version      plainValue `json:"PULUMI_CI_BUILD_NUMBER"`
	URL          plainValue `json:"PULUMI_CI_BUILD_URL"`
}

// plainValue is a [SecretValue] as one printable line. It is empty for a secret, and for a value
// of more than maxField bytes. The runner reports an invalid value.
type plainValue string

// UnmarshalJSON reads all forms of a SecretValue.
func (p *plainValue) UnmarshalJSON(text []byte) error {
	var v SecretValue
	*p = ""
	if len(text) <= maxField && json.Unmarshal(text, &v) == nil && !v.Secret {
		*p = plainValue(printable.OneLine(v.Value.Reveal()))
	}
	return nil
}

// workName is the name of a variable of workVariables, or empty for another name.
type workName string

// UnmarshalJSON reads a name. It keeps no other name, which saves memory.
func (n *workName) UnmarshalJSON(text []byte) error {
	if name := string(bytes.Trim(text, `"`)); strings.HasPrefix(name, "PULUMI_CI_") && len(text) <= maxField {
		*n = workName(name)
	}
	return nil
}

// work returns what a job works on, without secret variables.
func (d *agentDefinition) work() runtime.Work {
	public := func(name workName, value plainValue) string {
		if slices.Contains(d.Secrets, name) {
			return ""
		}
		return string(value)
	}
	short := func(name workName, value plainValue) string {
		return printable.Shorten(public(name, value), runtime.MaxWork)
	}
	return runtime.Work{
		Organization: short("PULUMI_CI_ORGANIZATION", d.Env.Organization),
		Project:      short("PULUMI_CI_PROJECT", d.Env.Project),
		Stack:        short("PULUMI_CI_STACK", d.Env.Stack),
		Operation:    short("PULUMI_CI_OPERATION", d.Env.Operation),
		Version:      short("PULUMI_CI_BUILD_NUMBER", d.Env.Version),
		URL:          pageURL(public("PULUMI_CI_BUILD_URL", d.Env.URL)),
	}
}

// pageURL returns the address of a page without user, query and fragment. It returns "" if text is
// not an address of http or https, or is too long.
func pageURL(text string) string {
	page, err := url.Parse(text)
	if err != nil || page.Host == "" || page.Scheme != "http" && page.Scheme != "https" || len(text) > runtime.MaxWork {
		return ""
	}
	return (&url.URL{Scheme: page.Scheme, Host: page.Host, Path: page.Path, RawPath: page.RawPath}).String()
}

// ReadDefinition returns what the agent needs of a job's definition. The result keeps text, because
// the runner may support fields that this release of the agent does not. An agent decodes no script
// and only the variables of workVariables, so the memory that it needs does not depend on the others.
// Errors contain no values.
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
		Work:         d.work(),
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
