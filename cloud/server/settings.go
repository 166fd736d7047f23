package server

import (
	"encoding/json"
	"fmt"

	"github.com/cmwa-project/cmwa/cloud"

	"github.com/cmwa-project/cmwa/cloud/server/keys"
	"github.com/cmwa-project/cmwa/cloud/server/store"
)

// settings are the deployment settings that this service supports (Pulumi Cloud REST
// API documentation, DeploymentSettings).
type settings struct {
	Pool      string           `json:"agentPoolID"`
	Executor  executorContext  `json:"executorContext"`
	Source    *sourceContext   `json:"sourceContext"`
	Operation operationContext `json:"operationContext"`
}

type executorContext struct {
	Image *cloud.Image `json:"executorImage"`
	Root  string       `json:"executorRootPath"`
}

type sourceContext struct {
	Git *gitSource `json:"git"`
}

type gitSource struct {
	URL    string  `json:"repoUrl"`
	Branch string  `json:"branch"`
	Commit string  `json:"commit"`
	Tag    string  `json:"tag"`
	Dir    string  `json:"repoDir"`
	Auth   gitAuth `json:"gitAuth"`
}

// gitAuth is a login to a git server. The first field that is set is used.
type gitAuth struct {
	SSH *struct {
		Key      cloud.SecretValue `json:"sshPrivateKey"`
		Password cloud.SecretValue `json:"password"`
	} `json:"sshAuth"`
	Token *cloud.SecretValue `json:"accessToken"`
	Basic *struct {
		User     cloud.SecretValue `json:"userName"`
		Password cloud.SecretValue `json:"password"`
	} `json:"basicAuth"`
}

type operationContext struct {
	PreRun  []string                     `json:"preRunCommands"`
	Env     map[string]cloud.SecretValue `json:"environmentVariables"`
	OIDC    oidcSettings                 `json:"oidc"`
	Options operationOptions             `json:"options"`
}

type operationOptions struct {
	SkipInstall       bool   `json:"skipInstallDependencies"`
	SkipIntermediate  bool   `json:"skipIntermediateDeployments"`
	Shell             string `json:"shell"`
	DeleteAfter       bool   `json:"deleteAfterDestroy"`
	RemediateIfDrifts bool   `json:"remediateIfDriftDetected"`
}

// readSettings decodes settings. Their secrets must be decrypted.
func readSettings(plain tree) (settings, error) {
	var read settings
	text, err := json.Marshal(plain)
	if err != nil {
		return read, fmt.Errorf("write settings: %w", err)
	}
	return read, decode(text, &read)
}

// checkSettings decrypts and decodes settings. It refuses settings that would have no effect.
func checkSettings(sealed tree, k keys.Key) (settings, error) {
	if err := checkSupported(sealed); err != nil {
		return settings{}, err
	}
	plain, err := openSecrets(sealed, k)
	if err != nil {
		return settings{}, err
	}
	return readSettings(plain)
}

func (s *Server) getSettings(c *call) (reply, error) {
	st, err := s.readStack(c)
	if err != nil {
		return reply{}, err
	}
	if st.Settings == "" {
		return reply{}, notFound("stack %s has no deployment settings", st.Path())
	}
	return reply{body: json.RawMessage(st.Settings)}, nil
}

// patchSettings merges the settings of the request into the stored ones.
func (s *Server) patchSettings(c *call) (reply, error) { return s.writeSettings(c, merge) }

// putSettings replaces the stored settings.
func (s *Server) putSettings(c *call) (reply, error) {
	return s.writeSettings(c, func(_, sent tree) tree { return merge(nil, sent) })
}

// writeSettings combines the stored settings and the settings of the request, and stores the
// result.
func (s *Server) writeSettings(c *call, combine func(have, sent tree) tree) (reply, error) {
	text, err := c.text(maxSettings)
	if err != nil {
		return reply{}, err
	}
	sent, err := decodeTree(text)
	if err != nil {
		return reply{}, err
	}

	// Store the settings if they are valid.
	var stored json.RawMessage
	err = s.db.Write(c.Context(), func(t *store.Tx) error {
		st, err := s.stackFromPath(t, c)
		if err != nil {
			return err
		}
		sealed, err := sealSecrets(sent, st.key)
		if err != nil {
			return err
		}
		have, err := st.settingsTree()
		if err != nil {
			return err
		}
		merged := combine(have, sealed)
		meaning, err := checkSettings(merged, st.key)
		if err != nil {
			return err
		}
		if err := checkPool(t, st.Organization, meaning.Pool); err != nil {
			return err
		}
		if stored, err = json.Marshal(merged); err != nil {
			return fmt.Errorf("write settings: %w", err)
		}
		return t.SetSettings(st.ID, string(stored), meaning.Pool)
	})
	return reply{body: stored}, err
}

// settingsTree returns the stored settings, or an empty object.
func (st stack) settingsTree() (tree, error) {
	if st.Settings == "" {
		return tree{}, nil
	}
	return decodeTree([]byte(st.Settings))
}

func (s *Server) deleteSettings(c *call) (reply, error) {
	return reply{}, s.db.Write(c.Context(), func(t *store.Tx) error {
		st, err := s.stackFromPath(t, c)
		if err != nil {
			return err
		}
		if st.Settings == "" {
			return notFound("stack %s has no deployment settings", st.Path())
		}
		return t.SetSettings(st.ID, "", "")
	})
}

// encryptSetting returns an encrypted value for settings.
func (s *Server) encryptSetting(c *call) (reply, error) {
	var body struct {
		Plain *string `json:"plaintext"`
	}
	if err := c.decode(maxSettings, &body); err != nil {
		return reply{}, err
	}
	if body.Plain == nil {
		return reply{}, badRequest("plaintext is missing")
	}
	st, err := s.readStack(c)
	if err != nil {
		return reply{}, err
	}
	return reply{body: sealed(*body.Plain, st.key)}, nil
}
