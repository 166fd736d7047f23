package schema

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/cmwa-project/cmwa/schema/podtemplate"
	"github.com/cmwa-project/cmwa/schema/position"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// look reads a file that a key names, and takes what it finds into the digest,
// with its place: a file that is not there, or cannot be read, is a finding too,
// so that what moves from one pool's file to another's is another digest.
func (s *scope) look(key, name string) ([]byte, fs.FileMode, error) {
	s.load.files = append(s.load.files, name)
	content, mode, err := s.load.source.read(name)
	found := "read"
	switch {
	case err == nil:
	case missing(err):
		found, content = "not there", nil
	case errors.Is(err, fs.ErrPermission):
		found, content = "not allowed", nil
	default:
		found, content = "not readable", nil
	}
	// With its length, content cannot pass for the next file.
	fmt.Fprintf(s.load.digest, "\x00%q\x00%s\x00%d\x00%s", position.Join(s.at, key), found, len(content), content)
	return content, mode, err
}

// file is look, and reports what is wrong.
func (s *scope) file(key, name, cure string) (content []byte, mode fs.FileMode, ok bool) {
	content, mode, err := s.look(key, name)
	if err == nil && len(content) > position.MaxFile {
		s.refuse(position.RuleFile, fmt.Sprintf("the file is larger than %d KiB", position.MaxFile>>10),
			"name another", key)
		return nil, 0, false
	}
	if err != nil {
		s.unread(key, cure, err)
		return nil, 0, false
	}
	return content, mode, true
}

// unread reports a file that cannot be read. Its name stays out of messages:
// people put a secret itself there.
func (s *scope) unread(key, cure string, err error) {
	switch {
	case missing(err):
		s.refuse(position.RuleMissingFile, "there is no such file", cure+", or correct the name", key)
	case errors.Is(err, fs.ErrPermission):
		s.refuse(position.RuleMissingFile, "the file must not be read by this user",
			"give the agent's user the right to read it", key)
	default:
		s.refuse(position.RuleFile, "the file cannot be read", "name a regular file", key)
	}
}

// token reads the token file.
func (s *scope) token() secret.String {
	content, mode, ok := s.file("token_file", s.pool.TokenFile, "put the token into it")
	if !ok {
		return secret.String{}
	}
	token := string(bytes.TrimSpace(content))
	switch {
	case token == "":
		s.refuse(position.RuleFile, "the file is empty", "put the token into it", "token_file")
		return secret.String{}
	case len(token) > maxToken || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }):
		s.refuse(position.RuleFile, "the file must hold one token and nothing else", "", "token_file")
		return secret.String{}
	case mode&0o004 != 0:
		s.warn(position.RuleReadableToken, "the file may be read by every user", "chmod 600 the file", "token_file")
	}
	return secret.New(token)
}

// maxToken is the length of the longest token, in bytes.
const maxToken = 4096

// identity notes what the file of the OIDC token holds. It is read anew for each
// exchange, and need not be there yet.
func (s *scope) identity() {
	if content, _, err := s.look("oidc_token_file", s.pool.OIDCTokenFile); err == nil {
		sum := sha256.Sum256(content)
		s.pool.OIDCSum = hex.EncodeToString(sum[:])
	}
}

// certificates reads the CA file.
func (s *scope) certificates() {
	if s.pool.CAFile == "" || !s.valid("ca_file") {
		return
	}
	content, _, ok := s.file("ca_file", s.pool.CAFile, "put the certificates into it")
	if !ok {
		return
	}
	var good []byte
	for rest := content; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			s.refuse(position.RuleFile, "the file must hold certificates and nothing else",
				"remove the block that is none; a private key must not lie there", "ca_file")
			return
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			s.refuse(position.RuleFile, "the file holds a certificate that cannot be read",
				"export it anew, in PEM form", "ca_file")
			return
		}
		good = append(good, pem.EncodeToMemory(&pem.Block{Type: block.Type, Bytes: block.Bytes})...)
	}
	if len(good) == 0 {
		s.refuse(position.RuleFile, "the file holds no certificate in PEM form",
			"a PEM certificate begins with a line of dashes and BEGIN CERTIFICATE", "ca_file")
		return
	}
	s.pool.CA = string(good)
}

// template settles the Pod template: pod_template, or the file that
// pod_template_file names, or without either the file that the public packaging
// mounts.
func (s *scope) template() {
	if !s.valid("pod_template", "pod_template_file") {
		return
	}
	inline, isInline := s.values["pod_template"]
	name := s.pool.PodTemplateFile
	switch {
	case isInline && name != "":
		s.refuse(position.RuleFile, "must not be set beside pod_template", "remove one of the two",
			"pod_template_file")
	case isInline:
		problems := podtemplate.Check(inline, s.path("pod_template"))
		s.load.report(problems...)
		s.use(inline, problems)
		s.unusedTemplate(inline.Key, "pod_template", nil)
	case name != "":
		content, _, err := s.look("pod_template_file", name)
		if err != nil {
			s.unread("pod_template_file", "put the template into it", err)
			return
		}
		s.templateFile(name, content)
		if filepath.Clean(name) != DefaultPodTemplateFile {
			s.unusedTemplate(s.places["pod_template_file"], "pod_template_file", content)
		}
	case s.pool.DeployTarget == "kubernetes":
		s.mountedTemplate()
	}
}

// mountedTemplate reads the template from the file that the public packaging mounts.
// It need not be there, and may be a folder: that is what the mount of a key that is
// not there leaves.
func (s *scope) mountedTemplate() {
	content, _, err := s.look("pod_template_file", DefaultPodTemplateFile)
	switch {
	case err == nil:
		s.templateFile(DefaultPodTemplateFile, content)
	case errors.Is(err, secret.ErrNotRegular), missing(err):
	default:
		s.load.report(position.Problem{
			Rule: position.RuleMissingFile, File: DefaultPodTemplateFile, Path: s.path("pod_template_file"),
			Message: "the Pod template is there, and cannot be read by this user",
			Hint:    "give the agent's user the right to read it, or set pod_template",
		})
	}
}

// templateFile takes a template from a file of its own.
func (s *scope) templateFile(name string, content []byte) {
	v, problems, ok := podtemplate.Parse(name, content)
	if ok {
		problems = append(problems, podtemplate.Check(v, "")...)
		s.use(v, problems)
	}
	s.load.report(problems...)
}

// unusedTemplate warns if the file that the public packaging mounts holds another
// template than the one in use, which key names: people expect that it counts. The
// file is not followed for this. Without a template in use, people have decided so.
func (s *scope) unusedTemplate(at position.Origin, key string, used []byte) {
	if s.pool.DeployTarget != "kubernetes" || s.pool.PodTemplate == nil {
		return
	}
	content, _, err := s.load.source.read(DefaultPodTemplateFile)
	if err != nil || bytes.Equal(content, used) {
		return
	}
	if v, _, ok := podtemplate.Parse(DefaultPodTemplateFile, content); ok && len(v.Data.(position.Mapping)) == 0 {
		return
	}
	path := s.path(key)
	if at.Variable != "" {
		path = at.Variable
	}
	s.load.report(position.NewWarning(position.RuleFile, at, path,
		"takes the place of "+DefaultPodTemplateFile+", which has no effect",
		"move what is needed of that file here, and remove the file or its mount"))
}

func (s *scope) use(v position.Value, problems position.Problems) {
	if t, ok := v.Data.(position.Mapping); ok && len(t) > 0 && len(problems.Errors()) == 0 {
		s.pool.PodTemplate = t.Plain()
	}
}
