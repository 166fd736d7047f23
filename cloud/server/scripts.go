package server

import (
	"strings"

	"github.com/cmwa-project/cmwa/cloud"
)

// The scripts of this file are POSIX sh: the image of a job may have no other
// shell. Whatever users write enters them through quote, and secrets not at
// all: those are in variables, which the following steps unset.

// quote makes one word of sh out of any text without zero bytes.
func quote(text string) string {
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

// workplace is where the steps of a job work.
type workplace struct {
	root   string   // of the job; empty is what the runner says, or /
	source bool     // whether there is a checkout
	dir    string   // of the program, inside the checkout
	forget []string // variables that are for fetching the source alone
}

// top is the job's root folder as a word of sh that a slash may follow. Ours is
// the only runner known to say where it is; with any other it is /.
func (w workplace) top() string {
	if w.root != "" {
		return quote(strings.TrimRight(w.root, "/"))
	}
	return `"${PULUMI_WORKFLOW_ROOT%/}"`
}

// inside makes a script that works where the program is.
func (w workplace) inside(script string) string {
	var b strings.Builder
	if len(w.forget) > 0 {
		b.WriteString("unset " + strings.Join(w.forget, " ") + "\n")
	}
	if w.source {
		b.WriteString("cd " + w.top() + "/deployment")
		if w.dir != "" {
			b.WriteString("/" + quote(w.dir))
		}
		b.WriteString(" || exit\n")
	}
	b.WriteString(script)
	return b.String()
}

// Variables that carry a login to the step that fetches the source.
const (
	gitUser       = "CMWA_GIT_USER"
	gitPassword   = "CMWA_GIT_PASSWORD"
	gitKey        = "CMWA_GIT_SSH_KEY"
	gitPassphrase = "CMWA_GIT_SSH_PASSPHRASE"
)

// login is how a script logs in at a git server.
type login struct {
	ssh, password bool
	variables     []string
}

// tokenUser goes with an access token: git servers look at the token alone, but
// want a name.
const tokenUser = "x-access-token"

// loginAt chooses a login and puts its secrets into variables.
func loginAt(auth gitAuth, env map[string]string) login {
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

// sshLogin keeps the key in a folder that ends with the step. A server's key is
// trusted when it is first seen: a fresh container knows none.
const sshLogin = `(umask 077
  printf '%s\n' "$CMWA_GIT_SSH_KEY" >"$private/key"
  printf '%s\n' '#!/bin/sh' 'printf "%s\n" "$CMWA_GIT_SSH_PASSPHRASE"' >"$private/ask"
  chmod 700 "$private/ask")
export SSH_ASKPASS="$private/ask" SSH_ASKPASS_REQUIRE=force DISPLAY="${DISPLAY:-none}"
export GIT_SSH_COMMAND="ssh -i '$private/key' -o IdentitiesOnly=yes -o StrictHostKeyChecking=accept-new -o UserKnownHostsFile='$private/known'"
`

// passwordLogin tells git who we are through a helper that reads the variables,
// so that nothing of it stands on a command line or in the checkout.
const passwordLogin = `git config --file "$GIT_CONFIG_GLOBAL" credential.helper '!f() { test "$1" = get && printf "username=%s\npassword=%s\n" "$CMWA_GIT_USER" "$CMWA_GIT_PASSWORD"; }; f'
`

// fetch is the script of the step that gets the source. The git settings of its
// own say that a repository of somebody else on the same machine is fine: the
// settings name it.
func (w workplace) fetch(git gitSource, login login) string {
	var b strings.Builder
	line := func(parts ...string) { b.WriteString(strings.Join(parts, "") + "\n") }
	line("set -e")
	line("repository=", quote(git.URL))
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
	ref := git.Branch
	if git.Commit == "" && ref == "" {
		ref = git.Tag
	}
	switch {
	case git.Commit != "":
		line("commit=", quote(git.Commit))
		line(`git clone --no-checkout -- "$repository" "$target"`)
		line(`cd "$target"`)
		line(`git cat-file -e "$commit^{commit}" 2>/dev/null || git fetch origin "$commit"`)
		line(`git checkout --quiet --detach "$commit"`)
	case strings.HasPrefix(ref, "refs/"):
		line("ref=", quote(ref))
		line(`git clone --no-checkout -- "$repository" "$target"`)
		line(`cd "$target"`)
		line(`git fetch origin -- "$ref"`)
		line(`git checkout --quiet --detach FETCH_HEAD`)
	case ref != "":
		line(`git -c advice.detachedHead=false clone --branch=`, quote(ref), ` -- "$repository" "$target"`)
		line(`cd "$target"`)
	default:
		line(`git clone -- "$repository" "$target"`)
		line(`cd "$target"`)
	}
	line(`git log -1 --no-show-signature --format='at commit %H (%s)'`)
	if git.Dir != "" {
		line("cd ", quote("./"+git.Dir))
	}
	return b.String()
}

// installScript reads the runtime of the program with the shell alone. A YAML
// program has no dependencies that a package manager brings, and must do
// without a network.
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

// operations are the operations that there are.
func operations() []string {
	return []string{"update", "preview", "refresh", "destroy", "detect-drift", "remediate-drift"}
}

// operationScript is the script of a Pulumi operation. A backend of the user's
// own knows no organisations, and nobody has made the stack there.
func operationScript(operation, stack string, own bool, options operationOptions) (string, error) {
	with := " --non-interactive --stack=" + quote(stack)
	var script string
	switch operation {
	case "update":
		script = "pulumi up --yes --skip-preview" + with
	case "preview":
		script = "pulumi preview" + with
	case "refresh":
		script = "pulumi refresh --yes --skip-preview" + with
	case "destroy":
		script = "pulumi destroy --yes --skip-preview" + with
		if options.DeleteAfter {
			script += " &&\npulumi stack rm --yes" + with
		}
	case "detect-drift":
		script = "pulumi refresh --preview-only" + with
		if options.RemediateIfDrifts {
			script += " --expect-no-changes ||\npulumi up --refresh --yes --skip-preview" + with
		}
	case "remediate-drift":
		script = "pulumi up --refresh --yes --skip-preview" + with
	default:
		return "", badRequest("operation is missing: it must be one of %s", strings.Join(operations(), ", "))
	}
	if own {
		script = "pulumi stack select --create" + with + " || exit\n" + script
	}
	return script + "\n", nil
}
