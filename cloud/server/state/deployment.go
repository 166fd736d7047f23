package state

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"strconv"
	"time"
)

// The schema versions of deployments that this package reads. Version 4 is version 3 with a list of
// features, which a client must know to read the deployment.
const (
	minVersion = 3
	maxVersion = 4
)

// Deployment is the state of a stack. Its functions return changed copies, so several goroutines
// may use one. It contains ciphertexts, and the text that Decode received: do not change that.
type Deployment struct {
	version    int
	features   []string
	body       object // the member deployment; the next two fields replace its resources and pending_operations
	resources  []*resource
	operations []operation // pending operations
	manifest   object
}

// Empty returns the state of a new stack.
func Empty() *Deployment {
	d, err := Decode([]byte(`{"version":3,"deployment":{` +
		`"manifest":{"time":"0001-01-01T00:00:00Z","magic":"","version":""}}}`))
	if err != nil {
		panic(err)
	}
	return d
}

// Decode reads an object with the fields version, features and deployment, such as an
// UntypedDeployment or the body of a checkpoint. It ignores other fields beside these three.
// The error contains no value of the text, except the URN of a resource.
func Decode(text []byte) (*Deployment, error) {
	if err := validate(text); err != nil {
		return nil, fmt.Errorf("state: %w", err)
	}
	fields, err := parseObject(text)
	if err != nil {
		return nil, fmt.Errorf("state: %w", err)
	}
	version, err := parseInt(fields.get("version"))
	if err != nil {
		return nil, fmt.Errorf("version of the state: %w", err)
	}
	if version < minVersion || version > maxVersion {
		return nil, fmt.Errorf("the state has schema version %d, but this service stores only versions %d and %d",
			version, minVersion, maxVersion)
	}
	features, err := parseStrings(fields.get("features"))
	if err != nil {
		return nil, fmt.Errorf("features of the state: %w", err)
	}
	body := fields.get("deployment")
	if body == nil {
		return nil, errors.New("the state has no deployment")
	}
	d, err := parseBody(body)
	if err != nil {
		return nil, err
	}
	d.version, d.features = int(version), features
	return d, nil
}

// parseBody reads the member deployment, which Pulumi calls DeploymentV3.
func parseBody(text []byte) (*Deployment, error) {
	body, err := parseObject(text)
	if err != nil {
		return nil, fmt.Errorf("deployment: %w", err)
	}
	if _, _, err := parseProvider(body.get("secrets_providers")); err != nil {
		return nil, err
	}
	if _, _, err := parseSnippets(body.get("snippets")); err != nil {
		return nil, fmt.Errorf("snippets: %w", err)
	}
	if _, err := parseOptionalObject(body.get("extensions")); err != nil {
		return nil, fmt.Errorf("extensions: %w", err)
	}
	manifest, err := parseOptionalObject(body.get("manifest"))
	if err != nil {
		return nil, fmt.Errorf("manifest: %w", err)
	}
	d := &Deployment{version: minVersion, body: body, manifest: manifest}
	resources, err := parseList(body.get("resources"))
	if err != nil {
		return nil, fmt.Errorf("resources: %w", err)
	}
	for i, text := range resources {
		r, err := parseResource(text)
		if err != nil {
			return nil, fmt.Errorf("resource %d: %w", i, err)
		}
		d.resources = append(d.resources, r)
	}
	operations, err := parseList(body.get("pending_operations"))
	if err != nil {
		return nil, fmt.Errorf("pending_operations: %w", err)
	}
	for i, text := range operations {
		o, err := parseOperation(text)
		if err != nil {
			return nil, fmt.Errorf("pending operation %d: %w", i, err)
		}
		d.operations = append(d.operations, o)
	}
	return d, nil
}

// Encode returns an UntypedDeployment as JSON.
func (d *Deployment) Encode() []byte {
	size := 0
	for _, r := range d.resources {
		size += len(r.text) + 1
	}
	text := make([]byte, 0, size+size/8+1000)
	text = append(text, `{"version":`...)
	text = strconv.AppendInt(text, int64(d.version), 10)
	if len(d.features) > 0 {
		text = append(text, `,"features":`...)
		text = append(text, encode(d.features)...)
	}
	text = append(text, `,"deployment":{`...)
	for i, field := range d.body {
		if i > 0 {
			text = append(text, ',')
		}
		text = append(text, field.raw...)
		text = append(text, ':')
		switch field.name {
		case "resources":
			text = appendList(text, d.resources, func(r *resource) []byte { return r.text })
		case "pending_operations":
			text = appendList(text, d.operations, func(o operation) []byte { return o.text })
		default:
			text = append(text, field.value...)
		}
	}
	return append(text, "}}"...)
}

// with returns a copy of the deployment with another field of the body.
func (d *Deployment) with(name string, value []byte) *Deployment {
	changed := *d
	changed.body = d.body.with(name, value)
	return &changed
}

// withLists returns a copy of the deployment with other resources and pending operations.
func (d *Deployment) withLists(resources []*resource, operations []operation) *Deployment {
	placeholder := func(elements int) []byte {
		if elements == 0 {
			return nil
		}
		return []byte("[]") // Encode writes the elements
	}
	changed := d.with("resources", placeholder(len(resources))).
		with("pending_operations", placeholder(len(operations)))
	changed.resources, changed.operations = resources, operations
	return changed
}

// stamped returns the deployment with a new manifest. magic must be the digest of the version: the client
// refuses any other.
func (d *Deployment) stamped(at time.Time, version string) *Deployment {
	text, magic := encode(version), encode(fmt.Sprintf("%x", sha256.Sum256([]byte(version))))
	if version == "" {
		text, magic = d.manifest.get("version"), d.manifest.get("magic")
	}
	manifest := object{}.with("time", encode(at.UTC().Format(time.RFC3339Nano)))
	for _, field := range []change{{"magic", magic}, {"version", text}} {
		if field.value == nil {
			field.value = []byte(`""`)
		}
		manifest = manifest.with(field.name, field.value)
	}
	return d.with("manifest", manifest.appendTo(nil))
}

// Count returns the number of resources, including the root stack and providers. A resource that is
// replaced and not yet deleted counts too.
func (d *Deployment) Count() int { return len(d.resources) }

// RewriteProvider returns the deployment with the URL and the stack in secrets_providers.state, if the
// secrets provider is the service. A client decrypts at this URL, with the credentials that it has for
// exactly this URL: so the URL must be the one that the client has logged in to.
func RewriteProvider(d *Deployment, url, owner, project, stack string) *Deployment {
	return d.rewriteProvider(change{"url", encode(url)}, change{"owner", encode(owner)},
		change{"project", encode(project)}, change{"stack", encode(stack)})
}

func (d *Deployment) rewriteProvider(changes ...change) *Deployment {
	provider, state, err := parseProvider(d.body.get("secrets_providers"))
	if err != nil {
		panic(err) // parseBody has accepted it
	}
	if !bytes.Equal(provider.get("type"), []byte(`"service"`)) {
		return d
	}
	for _, c := range changes {
		state = state.with(c.name, c.value)
	}
	return d.with("secrets_providers", provider.with("state", state.appendTo(nil)).appendTo(nil))
}

// parseProvider returns the fields of secrets_providers and of its state. Both may be empty.
func parseProvider(text []byte) (provider, state object, err error) {
	if text == nil {
		return nil, nil, nil
	}
	if provider, err = parseObject(text); err != nil {
		return nil, nil, fmt.Errorf("secrets_providers: %w", err)
	}
	// The state of another provider may be any value.
	if text = provider.get("state"); text != nil && text[0] == '{' {
		if state, err = parseObject(text); err != nil {
			return nil, nil, fmt.Errorf("secrets_providers.state: %w", err)
		}
	}
	return provider, state, nil
}
