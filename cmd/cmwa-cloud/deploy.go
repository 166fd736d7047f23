package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"

	"github.com/peterbourgon/ff/v3/ffcli"

	"github.com/cmwa-project/cmwa/cmd/cli"
)

// list is a flag that may be given several times.
type list []string

func (l *list) String() string         { return strings.Join(*l, " ") }
func (l *list) Set(value string) error { *l = append(*l, value); return nil }

// wish is what the flags of deploy say.
type wish struct {
	operation, repo, branch, commit, dir, image, pool, root, shell, file string
	env, secretEnv, preRun                                               list
}

func (d *wish) flags(set *flag.FlagSet) {
	set.StringVar(&d.operation, "operation", "", "update, preview, refresh, destroy, detect-drift or remediate-drift")
	set.StringVar(&d.repo, "repo", "", "git repository of the program: a URL, or a path that the job can see")
	set.StringVar(&d.branch, "branch", "", "branch of the repository")
	set.StringVar(&d.commit, "commit", "", "commit of the repository, instead of a branch")
	set.StringVar(&d.dir, "dir", "", "folder of the program in the repository")
	set.StringVar(&d.image, "image", "", "container image of the job")
	set.StringVar(&d.pool, "pool", "", "id of the agent pool")
	set.StringVar(&d.root, "root", "", "folder that stands for / in the job")
	set.StringVar(&d.shell, "shell", "", "shell of the steps")
	set.StringVar(&d.file, "file", "", "file with a deployment request as JSON; flags go over it")
	set.Var(&d.env, "env", "variable of the job, as NAME=VALUE (repeatable)")
	set.Var(&d.secretEnv, "secret-env", "name of a variable whose value is taken from the environment and kept secret (repeatable)")
	set.Var(&d.preRun, "pre-run", "command that runs before the operation (repeatable)")
}

// object is a JSON object in the making.
type object = map[string]any

// put sets a value at a path, making the objects on the way.
func put(at object, value any, path ...string) {
	for _, name := range path[:len(path)-1] {
		below, ok := at[name].(object)
		if !ok {
			below = object{}
			at[name] = below
		}
		at = below
	}
	at[path[len(path)-1]] = value
}

// request makes the body of the request.
func (d *wish) request(w world) (object, error) {
	body := object{}
	if d.file != "" {
		text, err := os.ReadFile(d.file)
		if err != nil {
			return nil, fmt.Errorf("read the request: %w", err)
		}
		if err := json.Unmarshal(text, &body); err != nil || body == nil {
			return nil, cli.Usagef("%s is not a JSON object", d.file)
		}
	}
	for _, one := range []struct {
		value string
		path  []string
	}{
		{d.operation, []string{"operation"}},
		{d.pool, []string{"agentPoolID"}},
		{d.image, []string{"executorContext", "executorImage"}},
		{d.root, []string{"executorContext", "executorRootPath"}},
		{d.repo, []string{"sourceContext", "git", "repoUrl"}},
		{d.branch, []string{"sourceContext", "git", "branch"}},
		{d.commit, []string{"sourceContext", "git", "commit"}},
		{d.dir, []string{"sourceContext", "git", "repoDir"}},
		{d.shell, []string{"operationContext", "options", "shell"}},
	} {
		if one.value != "" {
			put(body, one.value, one.path...)
		}
	}
	for _, assignment := range d.env {
		name, value, found := strings.Cut(assignment, "=")
		if !found || name == "" {
			return nil, cli.Usagef("--env must be NAME=VALUE")
		}
		put(body, value, "operationContext", "environmentVariables", name)
	}
	for _, name := range d.secretEnv {
		value, found := w.environ(name)
		if !found {
			return nil, cli.Usagef("--secret-env %s: there is no variable of this name in the environment", name)
		}
		put(body, object{"secret": value}, "operationContext", "environmentVariables", name)
	}
	if len(d.preRun) > 0 {
		put(body, []string(d.preRun), "operationContext", "preRunCommands")
	}
	if body["operation"] == nil && body["cmwaSteps"] == nil {
		return nil, cli.Usagef("deploy needs --operation")
	}
	return body, nil
}

func deployCommand(w world) *ffcli.Command {
	set := flags(w, "cmwa-cloud deploy")
	account := accountFlags(set, w, "token-file", "access-token-file")
	follow := set.Bool("follow", false, "show the log as it runs, and end with 1 if the deployment fails")
	var d wish
	d.flags(set)
	return &ffcli.Command{
		Name: "deploy", ShortUsage: "cmwa-cloud deploy ORG/PROJECT/STACK --operation OPERATION [FLAGS]",
		ShortHelp: "queue a deployment; its stack is made if it is not there", FlagSet: set,
		Exec: func(ctx context.Context, args []string) error {
			names, err := arguments(set, args, "ORG/PROJECT/STACK")
			if err != nil {
				return err
			}
			stack, err := stackPath(names[0])
			if err != nil {
				return err
			}
			body, err := d.request(w)
			if err != nil {
				return err
			}
			c, err := account.open()
			if err != nil {
				return err
			}
			if err := ensureStack(ctx, c, stack); err != nil {
				return err
			}
			var answer struct {
				ID      string
				Version int
			}
			if err := c.call(ctx, http.MethodPost, stack+"/deployments", body, &answer); err != nil {
				return err
			}
			fmt.Fprintf(w.stdout, "deployment %d of %s is queued: %s\n", answer.Version, names[0], answer.ID)
			if !*follow {
				return nil
			}
			return c.follow(ctx, stack+"/deployments/"+answer.ID, w)
		},
	}
}

// ensureStack makes a stack unless it is there.
func ensureStack(ctx context.Context, c *client, stack string) error {
	err := c.call(ctx, http.MethodGet, stack, nil, nil)
	if !is(err, http.StatusNotFound) {
		return err
	}
	cut := strings.LastIndex(stack, "/")
	name, err := url.PathUnescape(stack[cut+1:])
	if err != nil {
		return fmt.Errorf("make the stack: %w", err)
	}
	err = c.call(ctx, http.MethodPost, stack[:cut], object{"stackName": name}, nil)
	if is(err, http.StatusConflict) { // somebody else was faster
		return nil
	}
	return err
}
