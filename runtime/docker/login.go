package docker

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/distribution/reference"
	"github.com/moby/moby/api/types/registry"

	"github.com/cmwa-project/cmwa/runtime"
)

const hubKey = "https://index.docker.io/v1/" // key of logins at docker.io

const maxConfig = 4 << 20 // bytes of a Docker configuration

// login returns the login for the registry of an image: that of the job, or else that of
// the Docker configuration, which is read each time. If there is no login, the result is
// empty. Errors never contain a secret.
func (e *Executor) login(ctx context.Context, job *runtime.Job, image reference.Named) (registry.AuthConfig, error) {
	server := reference.Domain(image)
	if own := job.Definition.Image; own.Username != "" || !own.Password.Empty() {
		return registry.AuthConfig{Username: own.Username, Password: own.Password.Reveal(), ServerAddress: server}, nil
	}
	config, err := e.readConfig()
	if err != nil {
		return registry.AuthConfig{}, err
	}
	key := server
	if server == "docker.io" {
		key = hubKey
	}
	if helper := config.helper(server, key); helper != "" {
		login, err := runHelper(ctx, helper, key)
		if err != nil || login != (registry.AuthConfig{}) {
			return login, err
		}
	}
	return config.auth(key)
}

// dockerConfig is the part of a Docker configuration that has logins.
type dockerConfig struct {
	Auths map[string]struct {
		Auth          string `json:"auth"` // user:password in base64
		Username      string `json:"username"`
		Password      string `json:"password"`
		IdentityToken string `json:"identitytoken"`
		RegistryToken string `json:"registrytoken"`
	} `json:"auths"`
	CredsStore  string            `json:"credsStore"`
	CredHelpers map[string]string `json:"credHelpers"`
}

// readConfig reads the configuration of the docker command. A missing file is an empty
// configuration.
func (e *Executor) readConfig() (dockerConfig, error) {
	var config dockerConfig
	directory, _ := e.environ("DOCKER_CONFIG")
	if directory == "" {
		home, _ := e.environ("HOME")
		if home == "" {
			return config, nil
		}
		directory = filepath.Join(home, ".docker")
	}
	path := filepath.Join(directory, "config.json")
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return config, nil
	case err != nil:
		return config, fmt.Errorf("read the Docker configuration: %w", err)
	case !info.Mode().IsRegular() || info.Size() > maxConfig:
		return config, fmt.Errorf("read the Docker configuration: %s is not a file, or is too large", path)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return config, fmt.Errorf("read the Docker configuration: %w", err)
	}
	if json.Unmarshal(text, &config) != nil { // without the cause, which may contain a secret
		return dockerConfig{}, fmt.Errorf("read the Docker configuration: %s is not valid JSON", path)
	}
	return config, nil
}

// helper returns the name of the credential helper for a registry, or of the default helper.
func (c dockerConfig) helper(server, key string) string {
	for _, name := range []string{server, key} {
		if helper, ok := c.CredHelpers[name]; ok {
			return helper
		}
	}
	return c.CredsStore
}

// auth returns the login that the configuration itself contains. The keys of logins are host
// names, or URLs that contain a host name.
func (c dockerConfig) auth(key string) (registry.AuthConfig, error) {
	entry, ok := c.Auths[key]
	for name, candidate := range c.Auths {
		if !ok && hostOf(name) == hostOf(key) {
			entry, ok = candidate, true
		}
	}
	if !ok {
		return registry.AuthConfig{}, nil
	}

	login := registry.AuthConfig{
		Username:      entry.Username,
		Password:      entry.Password,
		IdentityToken: entry.IdentityToken,
		RegistryToken: entry.RegistryToken,
		ServerAddress: key,
	}
	if entry.Auth == "" {
		return login, nil
	}
	pair, err := base64.StdEncoding.DecodeString(entry.Auth)
	user, password, found := strings.Cut(string(pair), ":")
	if err != nil || !found {
		return registry.AuthConfig{}, fmt.Errorf(
			"the login for %s in the Docker configuration is damaged: log in again with docker login", key)
	}
	login.Username, login.Password = user, strings.TrimRight(password, "\x00")
	return login, nil
}

func hostOf(name string) string {
	name = strings.TrimPrefix(strings.TrimPrefix(name, "https://"), "http://")
	host, _, _ := strings.Cut(name, "/")
	return host
}
