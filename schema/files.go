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
	"os"
	"path/filepath"
	"strings"

	"github.com/cmwa-project/cmwa/schema/podtemplate"
	"github.com/cmwa-project/cmwa/schema/position"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// readNamed reads a file that a key names. It adds the content and the path of the key to the
// digest. Because of the path, the digest changes if content moves from the file of one pool
// to the file of another pool. For a missing or unreadable file, readNamed adds the kind of
// the failure in place of the content.
func (s *scope) readNamed(key, name string) ([]byte, fs.FileMode, error) {
	s.load.files = append(s.load.files, name)
	content, mode, err := s.load.source.read(name)
	result := "read"
	switch {
	case err == nil:
	case missing(err):
		result, content = "missing", nil
	case errors.Is(err, fs.ErrPermission):
		result, content = "forbidden", nil
	default:
		result, content = "unreadable", nil
	}
	// The length separates the content from the next file.
	fmt.Fprintf(s.load.digest, "\x00%q\x00%s\x00%d\x00%s", position.Join(s.at, key), result, len(content), content)
	return content, mode, err
}

// readRequired reads a file that a key names, and reports a problem if it cannot be read.
func (s *scope) readRequired(key, name, hint string) (content []byte, mode fs.FileMode, ok bool) {
	content, mode, err := s.readNamed(key, name)
	if err == nil && len(content) > position.MaxFile {
		s.refuse(position.RuleFile, fmt.Sprintf("the file is larger than %d KiB", position.MaxFile>>10),
			"name another file", key)
		return nil, 0, false
	}
	if err != nil {
		s.reportUnread(key, name, hint, err)
		return nil, 0, false
	}
	return content, mode, true
}

// reportUnread reports a file that cannot be read. The message contains the path of the
// file, unless the path may be a secret.
func (s *scope) reportUnread(key, name, hint string, err error) {
	file := s.fileAt(key, name)
	switch {
	case missing(err):
		s.refuse(position.RuleMissingFile, "there is no "+file, hintForPath(name, hint+", or correct the name"), key)
	case errors.Is(err, fs.ErrPermission):
		s.refuse(position.RuleMissingFile,
			fmt.Sprintf("user %d cannot read the %s", os.Geteuid(), strings.TrimPrefix(file, "such ")), chownHint(),
			key)
	default:
		s.refuse(position.RuleFile, "cannot read the "+strings.TrimPrefix(file, "such "), "name a regular file", key)
	}
}

// chownHint returns the hint for a file that the agent's user, and no other, should be able to read.
func chownHint() string {
	return fmt.Sprintf("make the agent's user its owner, with mode 0600: if the agent runs as this user, "+
		"run chown %d and chmod 600 on it", os.Geteuid())
}

func (s *scope) readToken() secret.String {
	content, mode, ok := s.readRequired("token_file", s.pool.TokenFile, "put the token into it")
	if !ok {
		return secret.String{}
	}
	token := string(bytes.TrimSpace(content))
	switch {
	case token == "":
		s.refuse(position.RuleFile, "the file is empty", "put the token into it", "token_file")
		return secret.String{}
	case len(token) > maxToken || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }):
		s.refuse(position.RuleFile, "the file must contain one token and nothing else", "", "token_file")
		return secret.String{}
	case mode&0o004 != 0:
		s.warn(position.RuleReadableToken, "every user can read the file", chownHint(), "token_file")
	}
	return secret.New(token)
}

// maxToken is the length of the longest token, in bytes.
const maxToken = 4096

// readOIDCToken stores a digest of the file that contains the OIDC token. The file may be
// missing, because it is read again for each exchange.
func (s *scope) readOIDCToken() {
	name := s.pool.OIDCTokenFile
	content, _, err := s.readNamed("oidc_token_file", name)
	hint := hintForPath(name, "")
	switch {
	case err == nil:
		sum := sha256.Sum256(content)
		s.pool.OIDCSum = hex.EncodeToString(sum[:])
	case missing(err) && hint != "" && !s.load.source.local:
		s.warn(position.RuleMissingFile, "there is no "+s.fileAt("oidc_token_file", name), hint, "oidc_token_file")
	}
}

func (s *scope) readCertificates() {
	if s.pool.CAFile == "" || !s.valid("ca_file") {
		return
	}
	content, _, ok := s.readRequired("ca_file", s.pool.CAFile, "put the certificates into it")
	if !ok {
		return
	}

	var certificates []byte
	for remaining := content; ; {
		var block *pem.Block
		if block, remaining = pem.Decode(remaining); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			s.refuse(position.RuleFile, "the file must contain certificates and nothing else",
				"remove the other blocks; a private key must not be in this file", "ca_file")
			return
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			s.refuse(position.RuleFile, "the file contains an invalid certificate",
				"export it again, in PEM form", "ca_file")
			return
		}
		certificates = append(certificates, pem.EncodeToMemory(&pem.Block{Type: block.Type, Bytes: block.Bytes})...)
	}
	if len(certificates) == 0 {
		s.refuse(position.RuleFile, "the file contains no certificate in PEM form",
			"a PEM certificate begins with a line of dashes and BEGIN CERTIFICATE", "ca_file")
		return
	}
	s.pool.CA = string(certificates)
}

// readTemplate reads the Pod template: pod_template, the file in pod_template_file, or, if
// neither is set, [DefaultPodTemplateFile].
func (s *scope) readTemplate() {
	if !s.valid("pod_template", "pod_template_file") {
		return
	}
	inline, isInline := s.values["pod_template"]
	name := s.pool.PodTemplateFile
	switch {
	case isInline && name != "":
		s.refuse(position.RuleFile, "cannot be set together with pod_template", "remove one of the two",
			"pod_template_file")
	case isInline:
		problems := s.load.checkTemplate(inline, s.path("pod_template"))
		s.load.report(problems...)
		s.use(inline, problems)
		s.unusedTemplate(inline.Key, "pod_template", nil)
	case name != "":
		content, _, err := s.readNamed("pod_template_file", name)
		if err != nil {
			s.reportUnread("pod_template_file", name, "put the template into it", err)
			return
		}
		s.parseTemplate(name, content)
		if filepath.Clean(name) != DefaultPodTemplateFile {
			s.unusedTemplate(s.origins["pod_template_file"], "pod_template_file", content)
		}
	case s.pool.DeployTarget == "kubernetes":
		s.readMountedTemplate()
	}
}

// checkTemplate checks a template that applies to every job.
func (l *load) checkTemplate(v position.Value, path string) position.Problems {
	if l.source.vetted {
		return podtemplate.CheckWhole(v, path)
	}
	return podtemplate.Check(v, path)
}

// readMountedTemplate reads the template from [DefaultPodTemplateFile]. The file may be
// missing. It may also be a directory, which Kubernetes creates if the mount names a key
// that does not exist.
func (s *scope) readMountedTemplate() {
	content, _, err := s.readNamed("pod_template_file", DefaultPodTemplateFile)
	switch {
	case err == nil:
		s.parseTemplate(DefaultPodTemplateFile, content)
	case errors.Is(err, secret.ErrNotRegular), missing(err):
	default:
		s.load.report(position.Problem{
			Rule: position.RuleMissingFile, File: DefaultPodTemplateFile, Path: s.path("pod_template_file"),
			Message: fmt.Sprintf("the Pod template exists, but user %d cannot read it", os.Geteuid()),
			Hint:    "make it readable for the agent's user, or set pod_template",
		})
	}
}

func (s *scope) parseTemplate(name string, content []byte) {
	v, problems, ok := podtemplate.Parse(name, content)
	if ok {
		problems = append(problems, s.load.checkTemplate(v, "")...)
		s.use(v, problems)
	}
	s.load.report(problems...)
}

// unusedTemplate warns if [DefaultPodTemplateFile] contains another template than the one
// in use, because people expect that a mounted file is used. key is the key that sets the
// template in use; used is the content of that template if it is in a file. The mounted file
// is not watched. There is no warning if the template in use is empty: with an empty template
// a user disables the mounted one.
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
	s.load.report(position.NewWarning(position.RuleFile, at, s.path(key),
		"replaces "+DefaultPodTemplateFile+", which has no effect",
		"copy the settings that you need from that file, and remove the file or its mount"))
}

// use makes v the template of the pool, unless v is empty or its problems contain an error.
func (s *scope) use(v position.Value, problems position.Problems) {
	if t, ok := v.Data.(position.Mapping); ok && len(t) > 0 && len(problems.Errors()) == 0 {
		s.pool.PodTemplate = t.Plain()
	}
}
