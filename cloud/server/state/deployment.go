package state

import (
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
	operations []*operation // pending operations
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
	fields, err := parseText(text)
	if err != nil {
		return nil, fmt.Errorf("state: %w", err)
	}
	version, features := 0, []string(nil)
	err = fields.decode(map[string]func([]byte) error{"version": into(&version), "features": into(&features)})
	if err != nil {
		return nil, fmt.Errorf("state: %w", err)
	}
	if version < minVersion || version > maxVersion {
		return nil, fmt.Errorf("the state has schema version %d, but this service stores only versions %d and %d",
			version, minVersion, maxVersion)
	}
	body := fields.get("deployment")
	if body == nil {
		return nil, errors.New("the state has no deployment")
	}
	d, err := parseBody(body)
	if err != nil {
		return nil, fmt.Errorf("deployment: %w", err)
	}
	d.version, d.features = version, features
	return d, nil
}

// parseBody reads the member deployment, which Pulumi calls DeploymentV3.
func parseBody(text []byte) (*Deployment, error) {
	body, err := parseObject(text)
	if err != nil {
		return nil, err
	}
	d := &Deployment{version: minVersion, body: body}
	err = body.decode(map[string]func([]byte) error{
		"manifest":           parsed(&d.manifest, parseObject),
		"secrets_providers":  parsed(new(object), parseProvider),
		"snippets":           parsed(new([]snippet), listOf(parseSnippet)),
		"extensions":         parsed(new(object), parseObject),
		"resources":          parsed(&d.resources, listOf(parseResource)),
		"pending_operations": parsed(&d.operations, listOf(parseOperation)),
	})
	return d, err
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
		text = append(append(text, encode(field.name)...), ':')
		switch field.name {
		case "resources":
			text = appendList(text, d.resources, func(r *resource) []byte { return r.text })
		case "pending_operations":
			text = appendList(text, d.operations, func(o *operation) []byte { return o.text })
		default:
			text = append(text, field.value...)
		}
	}
	return append(text, "}}"...)
}

// with returns a copy of the deployment with other fields of the body.
func (d *Deployment) with(changes ...field) *Deployment {
	changed := *d
	changed.body = d.body.with(changes...)
	return &changed
}

// withLists returns a copy of the deployment with other resources and pending operations.
func (d *Deployment) withLists(resources []*resource, operations []*operation) *Deployment {
	placeholder := func(elements int) []byte {
		if elements == 0 {
			return nil
		}
		return []byte("[]") // Encode writes the elements
	}
	changed := d.with(field{"resources", placeholder(len(resources))},
		field{"pending_operations", placeholder(len(operations))})
	changed.resources, changed.operations = resources, operations
	return changed
}

// stamped returns the deployment with a new manifest. magic must be the digest of the version: the client
// refuses any other.
func (d *Deployment) stamped(at time.Time, version string) *Deployment {
	old := func(name string) []byte {
		if value := d.manifest.get(name); value != nil {
			return value
		}
		return []byte(`""`)
	}
	text, magic := old("version"), old("magic")
	if version != "" {
		text, magic = encode(version), encode(fmt.Sprintf("%x", sha256.Sum256([]byte(version))))
	}
	manifest := object{{"time", encode(at.UTC().Format(time.RFC3339Nano))}, {"magic", magic}, {"version", text}}
	return d.with(field{"manifest", manifest.appendTo(nil)})
}

// Count returns the number of resources, including the root stack and providers. A resource that is
// replaced and not yet deleted counts too.
func (d *Deployment) Count() int { return len(d.resources) }

// RewriteProvider returns the deployment with the URL and the stack in secrets_providers.state, if the
// secrets provider is the service. A client decrypts at this URL, with the credentials that it has for
// exactly this URL: so the URL must be the one that the client has logged in to.
func RewriteProvider(d *Deployment, url, owner, project, stack string) *Deployment {
	return d.rewriteProvider(field{"url", encode(url)}, field{"owner", encode(owner)},
		field{"project", encode(project)}, field{"stack", encode(stack)})
}

func (d *Deployment) rewriteProvider(changes ...field) *Deployment {
	provider, err := parseProvider(d.body.get("secrets_providers"))
	if err != nil {
		panic(err) // parseBody has accepted it
	}
	if !provider.isService() {
		return d
	}
	state, err := parseObject(provider.get("state"))
	if err != nil {
		panic(err)
	}
	provider = provider.with(field{"state", state.with(changes...).appendTo(nil)})
	return d.with(field{"secrets_providers", provider.appendTo(nil)})
}

// parseProvider returns the fields of secrets_providers. The state of another provider than the service may be any
// value.
func parseProvider(text []byte) (provider object, err error) {
	if provider, err = parseObject(text); err == nil && provider.isService() {
		_, err = parseObject(provider.get("state"))
	}
	return provider, err
}

func (o object) isService() bool { return string(o.get("type")) == `"service"` }
