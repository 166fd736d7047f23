package cloud

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/cmwa-project/cmwa/schema/secret"
)

// AcceptV8 is the media type that requests version 8 of the API. Newer versions change
// nothing for an agent (Pulumi Cloud REST API documentation).
const AcceptV8 = "application/vnd.pulumi+8"

// AuthScheme is the scheme of tokens in the Authorization header.
const AuthScheme = "token"

// Poll is the response of GET /api/deployments/poll: a claimed job. It contains tokens in
// plain text.
type Poll struct {
	JobID          string `json:"jobID"`
	RunID          string `json:"runID"`
	TypeSpecificID string `json:"typeSpecificID"`
	DeploymentID   string `json:"deploymentID,omitempty"` // deprecated: the same as TypeSpecificID
	JobToken       string `json:"jobToken"`
	OIDCToken      string `json:"oidcToken"`
}

// Format writes only the job's id, for every verb.
func (p Poll) Format(f fmt.State, _ rune) { fmt.Fprintf(f, "claim of job %s", p.JobID) }

// Definition is the response of GET /api/workflow/jobs/{jobID}.
type Definition struct {
	Image        Image                  `json:"image"`
	OS           string                 `json:"os,omitempty"`
	Architecture string                 `json:"architecture,omitempty"`
	Shell        string                 `json:"shell,omitempty"`
	Timeout      Duration               `json:"timeout,omitzero"`
	Env          map[string]SecretValue `json:"env,omitempty"`
	Steps        []Step                 `json:"steps"`

	// SecretVariables lists the names of the secret variables in Env. It is not part of
	// Pulumi's protocol.
	SecretVariables []string `json:"cmwaSecretVariables,omitempty"`
}

// Step is one step of a definition. Step 0 is the setup.
type Step struct {
	Name       string   `json:"name"`
	Run        string   `json:"run"`
	WorkingDir string   `json:"workingDir,omitempty"`
	Timeout    Duration `json:"timeout,omitzero"`
}

// Image is a container image. Its JSON is an object, or a string with the reference.
type Image struct {
	Reference   string       `json:"reference"`
	IsDefault   bool         `json:"isDefault,omitempty"`
	Credentials *Credentials `json:"credentials,omitempty"`
}

// Credentials are the login to the registry of an image.
type Credentials struct {
	Username string      `json:"username"`
	Password SecretValue `json:"password"`
}

// UnmarshalJSON reads both forms.
func (i *Image) UnmarshalJSON(text []byte) error {
	var reference string
	if json.Unmarshal(text, &reference) == nil {
		*i = Image{Reference: reference}
		return nil
	}
	type plain Image
	return json.Unmarshal(text, (*plain)(i))
}

// Duration is a duration. Its JSON is a Go duration string, or a number of nanoseconds.
type Duration time.Duration

// UnmarshalJSON reads both forms; null and "" are 0. A negative duration is an error.
func (d *Duration) UnmarshalJSON(text []byte) error {
	if bytes.Equal(text, []byte("null")) {
		return nil
	}
	var span time.Duration
	var written string
	if json.Unmarshal(text, &written) == nil {
		if written != "" {
			parsed, err := time.ParseDuration(written)
			if err != nil {
				return fmt.Errorf("a duration must be written such as %q: %w", "1h30m0s", err)
			}
			span = parsed
		}
	} else if err := json.Unmarshal(text, (*int64)(&span)); err != nil {
		return errors.New("a duration must be a string such as \"1h30m0s\", or a whole number of nanoseconds")
	}
	if span < 0 {
		return errors.New("a duration must not be negative")
	}
	*d = Duration(span)
	return nil
}

// MarshalJSON writes the string form.
func (d Duration) MarshalJSON() ([]byte, error) {
	return json.Marshal(time.Duration(d).String())
}

// SecretValue is a value that may be secret. Its JSON has four forms: a string, which is
// not secret; {"secret": plain}; {"ciphertext": opaque}; and {"isSecret": bool, "value":
// plain} (Pulumi's public apitype module).
type SecretValue struct {
	Value      secret.String // empty if there is only a ciphertext
	Secret     bool          // the value is secret
	Ciphertext string        // only the service can decrypt it
}

// UnmarshalJSON reads all four forms. Its errors do not contain the value.
func (v *SecretValue) UnmarshalJSON(text []byte) error {
	*v = SecretValue{}
	var plain string
	if json.Unmarshal(text, &plain) == nil { // null too
		v.Value = secret.New(plain)
		return nil
	}
	var object struct {
		Secret     *secret.String `json:"secret"`
		Ciphertext *string        `json:"ciphertext"`
		IsSecret   bool           `json:"isSecret"`
		Value      *secret.String `json:"value"`
	}
	if json.Unmarshal(text, &object) != nil {
		return errors.New(`a secret value must be a string, {"secret": …}, {"ciphertext": …} or {"isSecret": …, ` +
			`"value": …}`)
	}
	switch {
	case object.Secret != nil:
		v.Value, v.Secret = *object.Secret, true
	case object.Value != nil:
		v.Value, v.Secret = *object.Value, object.IsSecret
	case object.Ciphertext != nil:
		v.Ciphertext, v.Secret = *object.Ciphertext, true
	default:
		return errors.New(`a secret value has none of "secret", "value" and "ciphertext"`)
	}
	return nil
}

// MarshalJSON writes the first three forms. It reveals the value, so it must be used only
// for calls.
func (v SecretValue) MarshalJSON() ([]byte, error) {
	switch {
	case v.Ciphertext != "":
		return json.Marshal(map[string]string{"ciphertext": v.Ciphertext})
	case v.Secret:
		return json.Marshal(map[string]string{"secret": v.Value.Reveal()})
	default:
		return json.Marshal(v.Value.Reveal())
	}
}

// StepStatus is the body of PATCH /api/workflow/jobs/{jobID}/{step}/status.
type StepStatus struct {
	Status string `json:"status"` // not-started, running, failed or succeeded
}

// LogBatch is the body of POST /api/workflow/jobs/{jobID}/{step}/logs.
type LogBatch struct {
	Offset int       `json:"offset"` // index of the first line within its step, from 0
	Lines  []LogLine `json:"lines"`
}

// LogLine is one line of a log. Its newline, if any, is part of the text.
type LogLine struct {
	Time time.Time `json:"t"`
	Text string    `json:"l"`
}

// ErrorBody is the body of a response with an error status. NextOffset is an extension of
// cmwa-cloud: if the service refuses log lines because of their offset, NextOffset is the
// number of lines of the step that the service has stored.
type ErrorBody struct {
	Code       int    `json:"code"`
	Message    string `json:"message"`
	NextOffset *int   `json:"cmwaNextOffset,omitempty"`
}
