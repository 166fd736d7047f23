//go:build linux || darwin

package process

import (
	"slices"
	"strings"
)

// markerVariable is the variable that identifies the processes of a job: its value is the
// directory of the job.
const markerVariable = "CMWA_JOB_DIRECTORY"

// allowedVariables are the agent's variables that a job gets, together with all LC_
// variables: they are needed to find programs, to use the user's language, and to reach the
// network. All other variables, in particular the agent's credentials, are withheld unless
// they are forwarded by name.
var allowedVariables = []string{
	"PATH", "LANG", "LANGUAGE", "TZ", "USER", "LOGNAME", "SHELL",
	"SSL_CERT_FILE", "SSL_CERT_DIR",
	"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
}

func jobEnviron(agent []string, directory string) []string {
	all := []string{"PATH=/usr/local/bin:/usr/bin:/bin"} // a later entry overrides it
	for _, entry := range agent {
		name, _, ok := strings.Cut(entry, "=")
		if ok && (slices.Contains(allowedVariables, name) || strings.HasPrefix(name, "LC_")) {
			all = append(all, entry)
		}
	}
	return append(all,
		"HOME="+directory+"/"+homeDirectory,
		// A statically linked pulumi gets the home directory from the system, not from HOME.
		"PULUMI_HOME="+directory+"/"+homeDirectory+"/.pulumi",
		"TMPDIR="+directory+"/"+tempDirectory,
		markerVariable+"="+directory,
	)
}
