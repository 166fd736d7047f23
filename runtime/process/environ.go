//go:build linux || darwin

package process

import (
	"slices"
	"strings"
)

// marker is the variable by which a process is known to belong to a job: it
// holds the job's folder.
const marker = "CMWA_JOB_FOLDER"

// allowed are the agent's variables that a job sees: what programs need to be
// found, to speak the user's language, and to reach the network. Everything
// else, the agent's credentials above all, stays with the agent unless it is
// forwarded by name.
var allowed = []string{
	"PATH", "LANG", "LANGUAGE", "TZ", "USER", "LOGNAME", "SHELL",
	"SSL_CERT_FILE", "SSL_CERT_DIR",
	"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
}

// environ is the environment of a job in a folder.
func environ(agent []string, folder string) []string {
	all := []string{}
	path := false
	for _, entry := range agent {
		name, _, ok := strings.Cut(entry, "=")
		if ok && (slices.Contains(allowed, name) || strings.HasPrefix(name, "LC_")) {
			all = append(all, entry)
			path = path || name == "PATH"
		}
	}
	if !path {
		all = append(all, "PATH=/usr/local/bin:/usr/bin:/bin")
	}
	return append(all,
		"HOME="+folder+"/"+homeFolder,
		"PULUMI_HOME="+folder+"/"+homeFolder+"/.pulumi", // a static pulumi asks the system for the home folder, and not HOME
		"TMPDIR="+folder+"/"+tempFolder,
		marker+"="+folder,
	)
}
