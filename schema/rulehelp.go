package schema

import (
	"strings"

	"github.com/cmwa-project/cmwa/schema/position"
	"github.com/cmwa-project/cmwa/schema/printable"
)

// ruleHelp is the explanation of a rule in addition to its description.
type ruleHelp struct {
	cause   string // one or two sentences
	example string // a file with the problem; empty if a file alone cannot have it
	hint    string // what to do, as an imperative sentence
}

func ruleHelps() map[position.Rule]ruleHelp {
	return map[position.Rule]ruleHelp{
		position.RuleUnreadable: {
			cause: "The file does not exist, is a directory, or this user has no permission to read it.",
			hint:  "Correct the name, or change the permissions.",
		},
		position.RuleSyntax: {
			cause: "Indentation, quotes, brackets or colons are wrong, or the file contains something other " +
				"than keys and values.",
			example: "token: pul-...\n  log_level: info\n",
			hint:    "Correct the marked line.",
		},
		position.RuleSize: {
			cause: "The file is too large, or has too many values, including those that aliases repeat.",
			hint:  "Split the file, or write out the values of aliases.",
		},
		position.RuleDuplicateKey: {
			cause:   "YAML allows a key only once in a mapping. Which of the two values counts would be arbitrary.",
			example: "log_level: info\nlog_level: debug\n",
			hint:    "Remove one of the two.",
		},
		position.RuleUnknownKey: {
			cause: "The key is misspelt, in the wrong mapping, or from another release. A key that resembles a " +
				"known one is always an error.",
			example: "polling_intervall: 30s\n",
			hint:    "Use the suggested name.",
		},
		position.RuleUnknownVariable: {
			cause: "The name of an environment variable begins with PULUMI_AGENT_, but no key has this variable. " +
				"It has no effect.",
			hint: "Correct the name, or unset the variable.",
		},
		position.RuleOldName: {
			cause:   "The key or the file has a name of an earlier release, which still works.",
			example: "workflow_runners_directory: /opt/cmwa\n",
			hint:    "Use the new name.",
		},
		position.RuleUnused: {
			cause:   "The setting is accepted for compatibility, but the agent does not use it.",
			example: "workflow_runners_embeddable: \"true\"\n",
			hint:    "Remove it.",
		},
		position.RuleValue: {
			cause:   "The value has the wrong type, is not one of the choices, or is out of bounds.",
			example: "http_server_port: 70000\n",
			hint:    "Write a value that the message describes.",
		},
		position.RuleMissingToken: {
			cause: "A pool has no access token and no OIDC token. The environment of the agent may contain one, " +
				"so this is a warning at the top level of a file.",
			example: "log_level: info\n",
			hint:    "Set token or token_file, or the keys of OIDC.",
		},
		position.RuleCredentials: {
			cause: "Two kinds of credentials are set, but a pool can use only one kind. Or a key that the " +
				"credentials require is missing.",
			example: "oidc_token_file: /var/run/oidc/token\norganization_name: acme\n",
			hint:    "Keep one kind of credentials, and set all of its keys.",
		},
		position.RuleReadableToken: {
			cause: "Users other than the agent's can read the token.",
			hint:  "Restrict the permissions of the file, or move the token to a Secret.",
		},
		position.RuleFile: {
			cause:   "A file that a key names is not a regular file, or its content is not what the key requires.",
			example: "token_file: /dev/null\n",
			hint:    "Correct the content, or name another file.",
		},
		position.RuleMissingFile: {
			cause: "The name is wrong, or this user has no permission to read the file. Without " +
				"--local, only missing Pod templates are reported, because other files may exist only on the " +
				"agent's machine.",
			hint: "Create the file, correct the name, or change the permissions.",
		},
		position.RulePools: {
			cause:   "Two pools have the same name, or would claim the same jobs.",
			example: "pools:\n  - {name: a, token: pul-1}\n  - {name: a, token: pul-2}\n",
			hint:    "Give each pool its own name and token.",
		},
		position.RulePollRate: {
			cause: "All pools together poll more than ten times per second. Services reject such rates with " +
				"status 429.",
			example: "pools:\n  - {name: a, token: pul-1, polling_interval: 100ms}\n" +
				"  - {name: b, token: pul-2, polling_interval: 100ms}\n",
			hint: "Increase polling_interval.",
		},
		position.RuleTimes: {
			cause:   "One duration must be longer than another, and is not.",
			example: "request_retry_wait: 10m\nrequest_retry_max_wait: 1m\n",
			hint:    "Change one of the two.",
		},
		position.RulePodTemplate: {
			cause:   "The API server would reject the Pod, or the template cannot be merged into it.",
			example: "deploy_target: kubernetes\npod_template: {spec: {nodeSelector: linux}}\n",
			hint:    "Correct the marked field.",
		},
		position.RuleProtectedField: {
			cause:   "A Pod template or a label sets something that the agent sets itself.",
			example: "deploy_target: kubernetes\npod_template: {spec: {restartPolicy: Always}}\n",
			hint:    "Remove the marked field.",
		},
		position.RuleManifest: {
			cause: "A file with Kubernetes objects has no configuration, no Pod template and no variable of the " +
				"agent.",
			example: "apiVersion: v1\nkind: ConfigMap\ndata: {a: b}\n",
			hint:    "Check the key under data, or do not check this file.",
		},
		position.RuleInternal: {
			cause: "This is a bug of cmwa.",
			hint:  "Report it, with the file but without its secrets.",
		},
		position.RuleRelease: {
			cause:   "Another release of the agent may support the value; this one does not.",
			example: "deploy_target: ecs\n",
			hint:    "Use a value that the message lists.",
		},
		position.RuleOverlaid: {
			cause: "An environment variable overrides the key, so that a change in the file has no effect.",
			hint:  "Remove the key from the file, or unset the variable.",
		},
		position.RuleClearText: {
			cause: "The URL of the service begins with http:// and is not on this machine, so others in the " +
				"network can read the token.",
			example: "token: pul-...\nservice_url: http://pulumi.example.com\n",
			hint:    "Write https://, or run the agent on the machine of the service.",
		},
		position.RuleLoopback: {
			cause: "The URL of the service is a loopback address, and jobs run in containers, which have a " +
				"loopback address of their own. Jobs cannot reach the service.",
			example: "token: pul-...\nservice_url: http://127.0.0.1:8585\n",
			hint: "Let the service listen on an address of this machine that containers reach, such as that of " +
				"docker0, and write that address. With docker.network host, containers have the network of this " +
				"machine.",
		},
		position.RuleUnknownValue: {
			cause: "Only the cluster has the value: it comes from a Secret, from a field of the Pod, or from a " +
				"ConfigMap that is not among the manifests. What cmwa prints does not include it.",
			hint: "Add the ConfigMap to the file or the directory, or leave it as it is.",
		},
		position.RulePlaceholder: {
			cause:   "The value is the text of an example, or a variable that nothing expands.",
			example: "token: <your-token>\n",
			hint:    "Write the token that the service displayed when the pool was created.",
		},
	}
}

func ruleExplanation(info position.RuleInfo, width int) string {
	help := ruleHelps()[info.Rule]
	var b strings.Builder
	b.WriteString(string(info.Rule) + "\n\n")
	writeLines(&b, printable.Wrap(info.Description+". "+help.cause, "  ", "  ", width))
	b.WriteString("\n")
	writeLines(&b, columnText("  fix", help.hint, factColumn, width))
	writeLines(&b, columnText("  where", "a rule of cmwa vet", factColumn, width))
	if help.example != "" {
		b.WriteString("\n  A file with this problem:\n\n")
		for line := range strings.Lines(help.example) {
			b.WriteString("    " + line)
		}
	}
	return b.String()
}

// RuleExample returns a file that has a problem of a rule, and "" if a file alone cannot
// have one.
func RuleExample(rule position.Rule) string { return ruleHelps()[rule].example }
