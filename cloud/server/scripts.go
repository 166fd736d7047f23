package server

import (
	"strings"

	"github.com/cmwa-project/cmwa/cloud"
	"github.com/cmwa-project/cmwa/schema/printable"
)

// The scripts of this file are POSIX sh, because the image of a job may have no other
// shell. Text from users is always passed through printable.QuoteShell. Scripts contain no secrets: the
// login to the git server is in variables, and the steps after the checkout unset them.

// workspace is the directory and the environment of the steps of a job.
type workspace struct {
	root   string   // root directory of the job; empty means PULUMI_WORKFLOW_ROOT, or /
	source bool     // the job has a checkout
	dir    string   // directory of the program, inside the checkout
	unset  []string // variables that only the step that fetches the source may see
}

// top returns the job's root directory as an argument for sh, without a slash at the end.
// The runner of cmwa sets PULUMI_WORKFLOW_ROOT. With other runners the root is /.
func (w workspace) top() string {
	if w.root != "" {
		return printable.QuoteShell(strings.TrimRight(w.root, "/"))
	}
	return `"${PULUMI_WORKFLOW_ROOT%/}"`
}

// inside returns a script that runs in the directory of the program.
func (w workspace) inside(script string) string {
	var b strings.Builder
	if len(w.unset) > 0 {
		b.WriteString("unset " + strings.Join(w.unset, " ") + "\n")
	}
	if w.source {
		b.WriteString("cd " + w.top() + "/deployment")
		if w.dir != "" {
			b.WriteString("/" + printable.QuoteShell(w.dir))
		}
		b.WriteString(" || exit\n")
	}
	b.WriteString(script)
	return b.String()
}

// Variables with the login for the step that fetches the source.
const (
	gitUser       = "CMWA_GIT_USER"
	gitPassword   = "CMWA_GIT_PASSWORD"
	gitKey        = "CMWA_GIT_SSH_KEY"
	gitPassphrase = "CMWA_GIT_SSH_PASSPHRASE"
)

// login is how a script authenticates to a git server.
type login struct {
	ssh, password bool
	variables     []string
}

// tokenUser is the user name for an access token. Git servers require a name and ignore
// it.
const tokenUser = "x-access-token"

// chooseLogin returns a login, and adds its secrets to the variables.
func chooseLogin(auth gitAuth, env map[string]string) login {
	set := func(name string, value cloud.SecretValue) { env[name] = value.Value.Reveal() }
	switch {
	case auth.SSH != nil:
		set(gitKey, auth.SSH.Key)
		set(gitPassphrase, auth.SSH.Password)
		return login{ssh: true, variables: []string{gitKey, gitPassphrase}}
	case auth.Token != nil:
		env[gitUser] = tokenUser
		set(gitPassword, *auth.Token)
	case auth.Basic != nil:
		set(gitUser, auth.Basic.User)
		set(gitPassword, auth.Basic.Password)
	default:
		return login{}
	}
	return login{password: true, variables: []string{gitUser, gitPassword}}
}

// sshLogin writes the key to a directory that is removed at the end of the step. It trusts
// the key of a server on first use, because a new container has no known servers.
const sshLogin = `(umask 077
  printf '%s\n' "$CMWA_GIT_SSH_KEY" >"$private/key"
  printf '%s\n' '#!/bin/sh' 'printf "%s\n" "$CMWA_GIT_SSH_PASSPHRASE"' >"$private/ask"
  chmod 700 "$private/ask")
export SSH_ASKPASS="$private/ask" SSH_ASKPASS_REQUIRE=force DISPLAY="${DISPLAY:-none}"
export GIT_SSH_COMMAND="ssh -i '$private/key' -o IdentitiesOnly=yes -o StrictHostKeyChecking=accept-new` +
	` -o UserKnownHostsFile='$private/known'"
`

// passwordLogin installs a credential helper that reads the variables, so that no secret
// is in a command line or in the checkout.
const passwordLogin = `git config --file "$GIT_CONFIG_GLOBAL" credential.helper ` +
	`'!f() { test "$1" = get && ` +
	`printf "username=%s\npassword=%s\n" "$CMWA_GIT_USER" "$CMWA_GIT_PASSWORD"; }; f'
`

// fetch returns the script of the step that fetches the source. It sets safe.directory to
// *, so that git accepts a local repository of another user: the author of the settings
// has chosen the repository.
func (w workspace) fetch(git gitSource, login login) string {
	var b strings.Builder
	line := func(parts ...string) { b.WriteString(strings.Join(parts, "") + "\n") }

	// Use a private git configuration.
	line("set -e")
	line("repository=", printable.QuoteShell(git.URL))
	line("target=", w.top(), "/deployment")
	line("private=$(umask 077; mktemp -d)")
	line(`trap 'rm -rf "$private"' EXIT`)
	line(`trap 'exit 143' TERM`)
	line(`export GIT_TERMINAL_PROMPT=0 GIT_CONFIG_GLOBAL="$private/config"`)
	line(`git config --file "$GIT_CONFIG_GLOBAL" safe.directory '*'`)
	line(`[ ! -f "$HOME/.gitconfig" ] || git config --file "$GIT_CONFIG_GLOBAL" include.path "$HOME/.gitconfig"`)

	switch {
	case login.ssh:
		b.WriteString(sshLogin)
	case login.password:
		b.WriteString(passwordLogin)
	}

	// Check out the commit, the ref or the default branch.
	ref := git.Branch
	if git.Commit == "" && ref == "" {
		ref = git.Tag
	}
	switch {
	case git.Commit != "":
		line("commit=", printable.QuoteShell(git.Commit))
		line(`git clone --no-checkout -- "$repository" "$target"`)
		line(`cd "$target"`)
		line(`git cat-file -e "$commit^{commit}" 2>/dev/null || git fetch origin "$commit"`)
		line(`git checkout --quiet --detach "$commit"`)
	case strings.HasPrefix(ref, "refs/"):
		line("ref=", printable.QuoteShell(ref))
		line(`git clone --no-checkout -- "$repository" "$target"`)
		line(`cd "$target"`)
		line(`git fetch origin -- "$ref"`)
		line(`git checkout --quiet --detach FETCH_HEAD`)
	case ref != "":
		line(`git -c advice.detachedHead=false clone --branch=`, printable.QuoteShell(ref),
			` -- "$repository" "$target"`)
		line(`cd "$target"`)
	default:
		line(`git clone -- "$repository" "$target"`)
		line(`cd "$target"`)
	}
	line(`git log -1 --no-show-signature --format='at commit %H (%s)'`)
	if git.Dir != "" {
		line("cd ", printable.QuoteShell("./"+git.Dir))
	}
	return b.String()
}

// installScript installs the dependencies of a program. It reads the runtime from the
// project file with sh and tr only. A YAML program has no dependencies to install, and
// must work without a network.
const installScript = `runtime= within=
for project in Pulumi.yaml Pulumi.yml; do
  [ -f "$project" ] || continue
  while IFS= read -r line || [ -n "$line" ]; do
    case $line in
    runtime:*) runtime=${line#runtime:} within=yes ;;
    [!\ \	\#]*) within= ;;
    *[\ \	]name:*) [ -z "$within" ] || runtime=${line#*name:} ;;
    esac
  done <"$project"
  break
done
runtime=$(printf '%s' "${runtime%%#*}" | tr -cd 'A-Za-z0-9_-')
if [ "$runtime" = yaml ]; then
  echo 'A YAML program has no dependencies to download.'
else
  pulumi install
fi
`

// Operations returns the operations of deployments.
func Operations() []string {
	return []string{"update", "preview", "refresh", "destroy", "detect-drift", "remediate-drift"}
}

// operationScript returns the script of a Pulumi operation. OwnBackend means that the user
// has set another backend, which has no organizations and may not have the stack yet.
func operationScript(operation, stack string, ownBackend bool, options operationOptions) (string, error) {
	flags := " --non-interactive --stack=" + printable.QuoteShell(stack)

	var script string
	switch operation {
	case "update":
		script = "pulumi up --yes --skip-preview" + flags
	case "preview":
		script = "pulumi preview" + flags
	case "refresh":
		script = "pulumi refresh --yes --skip-preview" + flags
	case "destroy":
		script = "pulumi destroy --yes --skip-preview" + flags
		if options.DeleteAfter {
			script += " &&\npulumi stack rm --yes" + flags
		}
	case "detect-drift":
		script = "pulumi refresh --preview-only" + flags
		if options.RemediateIfDrifts {
			script += " --expect-no-changes ||\npulumi up --refresh --yes --skip-preview" + flags
		}
	case "remediate-drift":
		script = "pulumi up --refresh --yes --skip-preview" + flags
	default:
		return "", badRequest("operation is missing: it must be one of %s", strings.Join(Operations(), ", "))
	}
	if ownBackend {
		script = "pulumi stack select --create" + flags + " || exit\n" + script
	}
	return script + "\n", nil
}
