package server

import (
	"maps"
	"slices"
	"strings"
)

// supportedSettings contains the deployment settings that have an effect. The value of a setting is a tree with
// the settings inside it, nil if everything inside it is supported, or a reason why it is refused.
var supportedSettings = tree{
	"agentPoolID":     nil,
	"tag":             nil, // of the version of the settings; the CLI returns the one that it read
	"executorContext": tree{"executorImage": nil, "executorRootPath": nil},
	"sourceContext": tree{
		"git": tree{"repoUrl": nil, "branch": nil, "commit": nil, "tag": nil, "repoDir": nil, "gitAuth": nil},
		"hg":  "sources come from git only", "template": "sources come from git only",
	},
	"operationContext": tree{
		"preRunCommands": nil, "environmentVariables": nil,
		"oidc": tree{
			"aws":   tree{"roleArn": nil, "sessionName": nil, "policyArns": nil, "duration": nil},
			"azure": tree{"clientId": nil, "tenantId": nil, "subscriptionId": nil},
			"gcp": tree{
				"projectId": nil, "region": nil, "workloadPoolId": nil, "providerId": nil, "serviceAccount": nil,
				"tokenLifetime": nil,
			},
		},
		"options": tree{
			"skipInstallDependencies": nil, "skipIntermediateDeployments": nil, "shell": nil,
			"deleteAfterDestroy": nil, "remediateIfDriftDetected": nil,
		},
		"role": "a job always has the rights of its stack",
	},
	"gitHub":       "no push starts a deployment: call the API, for example from a CI job",
	"vcs":          "no push starts a deployment: call the API, for example from a CI job",
	"cacheOptions": "jobs on agents of your own have no cache",
}

// checkSupported refuses settings that would have no effect. It accepts a setting that asks for nothing: null,
// false, an empty text, list or object. The names are compared without case, as the decoder of settings does.
func checkSupported(sent tree) error { return checkBelow("", sent, supportedSettings) }

func checkBelow(path string, sent, supported tree) error {
	for _, name := range slices.Sorted(maps.Keys(sent)) {
		if asksNothing(sent[name]) {
			continue
		}
		known := ""
		for candidate := range supported {
			if strings.EqualFold(candidate, name) {
				known = candidate
			}
		}
		switch allowed := supported[known].(type) {
		case string:
			return badRequest("%s%s is not supported: %s", path, known, allowed)
		case tree:
			below, ok := sent[name].(tree)
			if !ok {
				return badRequest("%s%s must be a JSON object", path, known)
			}
			if err := checkBelow(path+known+".", below, allowed); err != nil {
				return err
			}
		case nil:
			if known == "" {
				return badRequest("%s%.100s is unknown, so it would have no effect: remove it", path, name)
			}
		}
	}
	return nil
}

// asksNothing reports whether a value is null, false, or empty.
func asksNothing(value any) bool {
	switch value := value.(type) {
	case nil:
		return true
	case bool:
		return !value
	case string:
		return value == ""
	case []any:
		return len(value) == 0
	case tree:
		for _, inner := range value {
			if !asksNothing(inner) {
				return false
			}
		}
		return true
	}
	return false
}
