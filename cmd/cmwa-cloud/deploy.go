package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/cmwa-project/cmwa/cloud/server"
	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/cmd/cli/command"
)

// deployFlags are the flags of deploy that set fields of the request.
type deployFlags struct {
	operation, repo, branch, commit, dir, image, pool, root, shell, file string
	env, secretEnv, preRun                                               []string
}

func (d *deployFlags) options() []command.Option {
	operation := command.String(&d.operation, "operation", command.OneOf(server.Operations()...), "operation of Pulumi")
	return append(d.settings(), operation)
}

// settings returns the flags that can also be settings of a stack.
func (d *deployFlags) settings() []command.Option {
	text := command.Text
	return []command.Option{
		command.String(&d.repo, "repo", command.URL, "git repository of the program: a URL, or a path that the job "+
			"can read"),
		command.String(&d.branch, "branch", command.Name, "branch of the repository"),
		command.String(&d.commit, "commit", text("HASH"), "commit of the repository, instead of a branch"),
		command.String(&d.dir, "dir", text("DIRECTORY"), "directory of the program in the repository"),
		command.String(&d.image, "image", command.Image, "container image of the job"),
		command.String(&d.pool, "pool", text("NAME|ID"), "agent pool"),
		command.String(&d.root, "root", text("DIRECTORY"), "directory that the job uses in place of /"),
		command.String(&d.shell, "shell", text("PROGRAM"), "shell of the steps"),
		command.String(&d.file, "file", command.File, "file with a request as JSON; flags override it"),
		command.Repeated(&d.env, "env", text("NAME=VALUE"), "environment variable of the job"),
		command.Repeated(&d.secretEnv, "secret-env", command.Name,
			"secret environment variable of the job, with its value from the environment of this command"),
		command.Repeated(&d.preRun, "pre-run", text("COMMAND"), "command to run before the operation"),
	}
}

// deployFields replaces the names of request fields in a message by the names of the flags
// that set them.
var deployFields = strings.NewReplacer(
	"agentPoolID", "--pool",
	"sourceContext.git.commit", "--commit",
	"sourceContext.git.repoDir", "--dir",
	"environmentVariables", "--env",
	"preRunCommands", "--pre-run",
	"executorRootPath", "--root",
	"repoUrl", "--repo",
)

// object is a JSON object.
type object = map[string]any

// put sets a value at a path, and makes the objects above it.
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

// request returns the body of a request for a deployment.
func (d *deployFlags) request(s stdio) (object, error) {
	body, err := d.body(s)
	if err == nil && body["operation"] == nil && body["cmwaSteps"] == nil {
		err = cli.Usagef("deploy needs --operation")
	}
	return body, err
}

// body returns the fields that the flags and the file set.
func (d *deployFlags) body(s stdio) (object, error) {
	body, err := readRequest(d.file)
	if err != nil {
		return nil, err
	}
	if d.branch != "" && d.commit != "" {
		return nil, cli.Usagef("--branch and --commit exclude each other")
	}

	for _, field := range []struct {
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
		if field.value != "" {
			put(body, field.value, field.path...)
		}
	}
	if err := putVariables(body, d.env, d.secretEnv, s, "operationContext", "environmentVariables"); err != nil {
		return nil, err
	}
	if len(d.preRun) > 0 {
		put(body, d.preRun, "operationContext", "preRunCommands")
	}
	return body, nil
}

// readRequest returns the JSON object in a file, or an empty one without a file.
func readRequest(path string) (object, error) {
	body := object{}
	if path == "" {
		return body, nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the request: %w", err)
	}
	if err := json.Unmarshal(text, &body); err != nil || body == nil {
		return nil, cli.Usagef("%s is not a JSON object", path)
	}
	return body, nil
}

// putVariables sets environment variables in the object at a path, from --env and
// --secret-env.
func putVariables(body object, env, secretEnv []string, s stdio, path ...string) error {
	for _, assignment := range env {
		name, value, found := strings.Cut(assignment, "=")
		if !found || name == "" {
			return cli.Usagef("--env must be NAME=VALUE")
		}
		put(body, value, append(slices.Clone(path), name)...)
	}
	for _, name := range secretEnv {
		value, found := s.environ(name)
		if !found {
			return cli.Usagef("--secret-env %s: the environment has no variable of this name", name)
		}
		put(body, object{"secret": value}, append(slices.Clone(path), name)...)
	}
	return nil
}

func deployCommand(s stdio) command.Command {
	connection, follow := newConnection(s), false
	var d deployFlags
	options := append(d.options(),
		command.Bool(&follow, "follow", "print the log until the deployment ends; exit code 1 if it does not succeed"))
	return command.Command{
		Name: "deploy", Help: "queue a deployment, and make its stack if it does not exist",
		Forms: connection.form([]command.Item{stackArgument}, options...),
		Run: func(ctx context.Context, args []string) error {
			c, stack, err := connection.openStack(args[0])
			if err != nil {
				return err
			}
			body, err := d.request(s)
			if err != nil {
				return err
			}
			var answer struct {
				ID      string
				Version int
			}
			if err := d.post(ctx, c, stack, "/deployments", body, &answer); err != nil {
				return err
			}
			fmt.Fprintf(s.stdout, "deployment %d of %s is queued: %s\n", answer.Version, args[0], answer.ID)
			if !follow {
				return nil
			}
			return c.follow(ctx, stack+"/deployments/"+answer.ID, s)
		},
	}
}

// post makes a stack if it does not exist, and sends it the fields. In its errors are the names of flags, unless a file
// has the fields.
func (d *deployFlags) post(ctx context.Context, c *client, stack, path string, body object, answer any) error {
	if d.pool != "" {
		organization := strings.Split(strings.TrimPrefix(stack, "/api/stacks/"), "/")[0]
		id, err := c.poolID(ctx, organizationsPath+organization, d.pool)
		if err != nil {
			return err
		}
		body["agentPoolID"] = id
	}
	if err := ensureStack(ctx, c, stack); err != nil {
		return err
	}
	err := c.call(ctx, http.MethodPost, stack+path, body, answer)
	if d.file == "" {
		return withFlags(err, deployFields)
	}
	return err
}

// ensureStack makes a stack if it does not exist.
func ensureStack(ctx context.Context, c *client, stack string) error {
	err := c.call(ctx, http.MethodGet, stack, nil, nil)
	if !hasStatus(err, http.StatusNotFound) {
		return err
	}
	cut := strings.LastIndex(stack, "/")
	name, err := url.PathUnescape(stack[cut+1:])
	if err != nil {
		return fmt.Errorf("make the stack: %w", err)
	}
	err = c.call(ctx, http.MethodPost, stack[:cut], object{"stackName": name}, nil)
	if hasStatus(err, http.StatusConflict) { // another client has made it
		return nil
	}
	return err
}
