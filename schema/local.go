package schema

import (
	"encoding/json"
	"strings"

	"github.com/cmwa-project/cmwa/schema/position"
)

// VetLocal is [Vet] for the machine on which the agent will run. It also checks the files
// that a configuration names. This user must be able to read them, and the content must fit
// the key: a token, certificates in PEM form, a Pod template, a task definition in JSON. The
// directory of the runner programs must exist. VetLocal checks manifests as Vet does, because
// the files that manifests name are on other machines.
//
// VetLocal never panics, and is safe for concurrent use.
func VetLocal(source Source) position.Problems {
	source.vetted, source.local = true, true
	return vetWith(source, func(problems position.Problems) position.Problems {
		return withoutRelease(withoutEnvironment(problems))
	})
}

// checkLocal checks what an agent reads only while it works: the OIDC token, the directory of
// the runner programs, and the task definition of ECS.
func (s *scope) checkLocal() {
	if !s.load.source.local {
		return
	}
	if name := s.pool.OIDCTokenFile; name != "" && s.valid("oidc_token_file") {
		s.localOIDCToken(name)
	}
	const directory = "working_directory"
	if name := s.pool.WorkingDirectory; name != "" && s.origins[directory].Line > 0 && s.valid(directory) {
		if _, _, err := s.load.source.read(name); missing(err) {
			s.reportUnread(directory, name, "put the runner programs there", err)
		}
	}
	const definition = "ecs.task_definition_template_file"
	name := s.pool.ECS.TaskDefinitionTemplateFile
	if s.pool.DeployTarget == "ecs" && name != "" && s.valid(definition) {
		content, _, ok := s.readRequired(definition, name, "put the task definition there")
		if ok && !json.Valid(content) {
			s.refuse(position.RuleFile, "the file is not JSON", "write what register-task-definition accepts",
				definition)
		}
	}
}

func (s *scope) localOIDCToken(name string) {
	content, _, ok := s.readRequired("oidc_token_file", name, "let the identity provider write the token there")
	if !ok {
		return
	}
	const parts = 3 // of a JSON Web Token: header, claims, signature
	token := strings.TrimSpace(string(content))
	switch {
	case token == "":
		s.refuse(position.RuleFile, "the file is empty", "let the identity provider write the token there",
			"oidc_token_file")
	case strings.ContainsAny(token, " \t\r\n"):
		s.refuse(position.RuleFile, "the file must contain one token and nothing else", "", "oidc_token_file")
	case strings.Count(token, ".") != parts-1:
		s.warn(position.RuleFile, "the file does not hold a JSON Web Token", "", "oidc_token_file")
	}
}
