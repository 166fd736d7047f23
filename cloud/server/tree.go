package server

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"strings"

	"github.com/cmwa-project/cmwa/cloud/server/keys"
)

// tree is a JSON object. Deployment settings are stored as users send them, including
// fields that this service does not know.
type tree = map[string]any

// decodeTree reads one JSON object, and nothing after it.
func decodeTree(text []byte) (tree, error) {
	if err := checkDepth(text); err != nil {
		return nil, err
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	var object tree
	if err := decoder.Decode(&object); err != nil || object == nil {
		return nil, badRequest("the body is not a JSON object")
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, badRequest("the body continues after its JSON object")
	}
	return object, nil
}

// merge returns a base with a JSON merge patch (RFC 7396) applied: an object in the patch
// is merged, null removes the value in the base, and any other value replaces it. merge
// changes neither argument.
func merge(base, patch tree) tree {
	merged := maps.Clone(base)
	if merged == nil {
		merged = tree{}
	}
	for name, value := range patch {
		switch value := value.(type) {
		case nil:
			delete(merged, name)
		case tree:
			below, _ := merged[name].(tree)
			merged[name] = merge(below, value)
		default:
			merged[name] = value
		}
	}
	return merged
}

// secretPlaces returns the paths of secret values in deployment settings. A star matches
// every name.
func secretPlaces() [][]string {
	places := [][]string{
		{"executorContext", "executorImage", "credentials", "password"},
		{"operationContext", "environmentVariables", "*"},
	}
	for _, source := range [][]string{{"git", "gitAuth"}, {"hg", "hgAuth"}, {"template", "gitAuth"}} {
		for _, value := range [][]string{
			{"sshAuth", "sshPrivateKey"}, {"sshAuth", "password"},
			{"accessToken"},
			{"basicAuth", "userName"}, {"basicAuth", "password"},
		} {
			path := append([]string{"sourceContext"}, source...)
			places = append(places, append(path, value...))
		}
	}
	return places
}

// eachSecret returns a copy of settings with a function applied to every secret value. It
// does not apply the function to null, because null in a merge patch removes a value.
func eachSecret(settings tree, change func(any) (any, error)) (tree, error) {
	var err error
	for _, path := range secretPlaces() {
		if settings, err = changeAt(settings, path, change); err != nil {
			return nil, err
		}
	}
	return settings, nil
}

// changeAt returns a copy of an object with a function applied to the values at a path.
// It ignores the case of names, as the decoder of settings does: otherwise a secret whose
// name is in another case would be used, but would be stored in plain text.
func changeAt(at tree, path []string, change func(any) (any, error)) (tree, error) {
	var names []string
	for name := range at {
		if path[0] == "*" || strings.EqualFold(name, path[0]) {
			names = append(names, name)
		}
	}
	copied := maps.Clone(at)
	for _, name := range names {
		value := at[name]
		if value == nil {
			continue
		}
		var err error
		if len(path) == 1 {
			copied[name], err = change(value)
		} else if below, ok := value.(tree); ok {
			copied[name], err = changeAt(below, path[1:], change)
		}
		if err != nil {
			return nil, err
		}
	}
	return copied, nil
}

// sealSecrets returns settings with encrypted secrets. Settings are stored and returned
// only in this form. It accepts every form of a value (see errSecretForm), and refuses a
// ciphertext that another key has encrypted.
func sealSecrets(settings tree, k keys.Key) (tree, error) {
	return eachSecret(settings, func(value any) (any, error) {
		object, ok := value.(tree)
		if !ok {
			if _, ok := value.(string); ok {
				return value, nil
			}
			return nil, errSecretForm()
		}
		if plain, ok := object["secret"].(string); ok {
			return sealed(plain, k), nil
		}
		if plain, ok := object["value"].(string); ok {
			if secret, _ := object["isSecret"].(bool); secret {
				return sealed(plain, k), nil
			}
			return plain, nil
		}
		if text, ok := object["ciphertext"].(string); ok {
			if _, err := unseal(text, k); err != nil {
				return nil, err
			}
			return tree{"ciphertext": text}, nil
		}
		return nil, errSecretForm()
	})
}

func errSecretForm() error {
	return badRequest(`a value that may be secret must be a string, ` +
		`{"secret": …}, {"ciphertext": …} or {"isSecret": …, "value": …}`)
}

func sealed(plain string, k keys.Key) tree {
	return tree{"ciphertext": base64.StdEncoding.EncodeToString(k.Seal([]byte(plain), forValue))}
}

func unseal(text string, k keys.Key) (string, error) {
	raw, err := base64.StdEncoding.DecodeString(text)
	if err == nil {
		raw, err = k.Open(raw, forValue)
	}
	if err != nil {
		return "", badRequest("%v", keys.ErrSealed)
	}
	return string(raw), nil
}

// openSecrets returns settings with decrypted secrets, for a job.
func openSecrets(settings tree, k keys.Key) (tree, error) {
	return eachSecret(settings, func(value any) (any, error) {
		object, _ := value.(tree)
		text, ok := object["ciphertext"].(string)
		if !ok {
			return value, nil
		}
		plain, err := unseal(text, k)
		return tree{"secret": plain}, err
	})
}
