package server

import (
	"reflect"
	"regexp"
	"runtime"
	"strings"
)

// openAPI returns a description of the API in the format OpenAPI 3.0. The command "pulumi api" reads
// it, and refuses paths that are not in it. It is made from the routes, so it describes all of them.
func (s *Server) openAPI(*call) (reply, error) {
	paths := map[string]map[string]any{}
	names := map[string]bool{}
	s.routes(func(pattern string, handle handler, do action) {
		method, path, found := strings.Cut(pattern, " ")
		if !found {
			return // the route of unknown paths
		}
		path, parameters := documentedPath(path)
		for _, name := range queryParameters[pattern] {
			parameters = append(parameters, parameter(name, "query"))
		}
		operation := map[string]any{
			"operationId": operationID(names, path, handle), "description": "Action: " + string(do) + ".",
			"tags": []string{tagOf(path)}, "parameters": parameters, "responses": responses,
		}
		if do == answerAnyone {
			operation["security"] = []any{}
		}
		if method != "GET" && method != "DELETE" {
			operation["requestBody"] = map[string]any{"content": anyJSON}
		}
		if paths[path] == nil {
			paths[path] = map[string]any{}
		}
		paths[path][strings.ToLower(method)] = operation
	})
	return reply{body: map[string]any{
		"openapi":  "3.0.3",
		"info":     map[string]string{"title": "cmwa-cloud", "version": "1"},
		"paths":    paths,
		"security": []any{map[string][]string{"token": {}}},
		"components": map[string]any{"securitySchemes": map[string]any{"token": map[string]string{
			"type": "apiKey", "in": "header", "name": "Authorization", "description": "token VALUE",
		}}},
	}}, nil
}

var (
	anyJSON   = map[string]any{"application/json": map[string]any{"schema": map[string]any{}}}
	responses = map[string]any{
		"2XX": map[string]any{"description": "Success. A response with status 204 has no body.", "content": anyJSON},
		"default": map[string]any{
			"description": "Error.",
			"content": map[string]any{"application/json": map[string]any{"schema": map[string]any{
				"type": "object",
				"properties": map[string]any{
					"code":    map[string]string{"type": "integer"},
					"message": map[string]string{"type": "string"},
				},
			}}},
		},
	}

	// queryParameters are the parameters of routes beside those in the path.
	queryParameters = map[string][]string{
		"GET /api/user/tokens":       {"filter"},
		"GET /api/orgs/{org}/tokens": {"filter"},
		"GET /api/user/stacks": {
			"organization", "project", "tagName", "tagValue", "continuationToken",
		},
		"DELETE /api/stacks/{org}/{project}/{stack}":                      {"force"},
		"GET /api/stacks/{org}/{project}/{stack}/updates":                 {"page", "pageSize", "output-type"},
		"GET /api/stacks/{org}/{project}/{stack}/updates/latest/previews": {"page", "pageSize", "asc"},
		"GET /api/stacks/{org}/{project}/{stack}/deployments":             {"page", "pageSize", "asc"},
		"GET /api/stacks/{org}/{project}/{stack}/deployments/{id}/{part}": {
			"continuationToken", "job", "step", "offset", "count",
		},
		"GET /api/orgs/{org}/deployments":           {"page", "pageSize", "asc"},
		"DELETE /api/orgs/{org}/agent-pools/{pool}": {"force"},
	}

	// documentedNames are the names of path parameters in Pulumi's description of its API. The CLI has
	// values for some of them, such as the current project.
	documentedNames = map[string]string{
		"org": "orgName", "project": "projectName", "stack": "stackName", "pool": "poolId", "tag": "tagName",
	}
)

func parameter(name, in string) map[string]any {
	return map[string]any{
		"name": name, "in": in, "required": in == "path", "schema": map[string]string{"type": "string"},
	}
}

// documentedPath returns the path and its parameters with their documented names.
func documentedPath(path string) (string, []map[string]any) {
	parameters := []map[string]any{}
	path = regexp.MustCompile(`\{[^}]*\}`).ReplaceAllStringFunc(path, func(part string) string {
		name := strings.Trim(part, "{}")
		if documented, ok := documentedNames[name]; ok {
			name = documented
		}
		parameters = append(parameters, parameter(name, "path"))
		return "{" + name + "}"
	})
	return path, parameters
}

// operationID returns the name of the handler, such as GetStack for the method getStack. If several
// routes have the same handler, the names of all but the first also contain the path.
func operationID(names map[string]bool, path string, handle handler) string {
	name := runtime.FuncForPC(reflect.ValueOf(handle).Pointer()).Name()
	name = strings.TrimSuffix(name[strings.LastIndexByte(name, '.')+1:], "-fm")
	name = strings.ToUpper(name[:1]) + name[1:]
	if names[name] {
		name += regexp.MustCompile(`[^A-Za-z0-9]+`).ReplaceAllString(path, "_")
	}
	names[name] = true
	return name
}

// tagOf returns the part of the API to which a path belongs, such as stacks.
func tagOf(path string) string {
	parts := strings.Split(strings.TrimPrefix(path, "/api"), "/")
	return parts[1]
}

// cliVersion makes no CLI print that it is too old.
func (s *Server) cliVersion(*call) (reply, error) {
	return reply{body: map[string]string{"latestVersion": "3.0.0", "oldestWithoutWarning": "3.0.0"}}, nil
}
