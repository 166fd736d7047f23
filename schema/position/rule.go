package position

// Rule is the stable name of the rule that a problem violates. Users select rules by name,
// so a published name never changes its meaning.
type Rule string

// The rules of configuration files, Pod templates and manifests. All are in one list,
// because a SARIF report and cmwa explain need the complete list.
const (
	RuleSyntax          Rule = "syntax"           // not YAML, or not one mapping
	RuleSize            Rule = "size"             // larger than MaxFile, or too many values
	RuleDuplicateKey    Rule = "duplicate-key"    // a key set twice in one mapping
	RuleUnknownKey      Rule = "unknown-key"      // a key that the schema does not know
	RuleUnknownVariable Rule = "unknown-variable" // a PULUMI_AGENT_ variable that the schema does not know
	RuleOldName         Rule = "old-name"         // a key or a file name of an earlier release
	RuleOverlaid        Rule = "overlaid"         // a key of the file that a variable overrides
	RuleUnused          Rule = "unused"           // a setting without effect
	RuleValue           Rule = "value"            // a value of the wrong type or out of bounds
	RuleMissingToken    Rule = "missing-token"    // no credentials at all
	RuleCredentials     Rule = "credentials"      // credentials that contradict each other or are incomplete
	RuleFile            Rule = "file"             // an unusable file that the configuration names
	RuleMissingFile     Rule = "missing-file"     // a missing or unreadable file that the configuration names
	RulePlaceholder     Rule = "placeholder"      // a token that is a placeholder
	RuleReadableToken   Rule = "readable-token"   // a token in a file that other users can read
	RulePools           Rule = "pools"            // pools that conflict with each other
	RulePollRate        Rule = "poll-rate"        // all pools together poll the service very often
	RuleTimes           Rule = "times"            // durations that conflict with each other or with single_run
	RuleRelease         Rule = "release"          // a setting that this release does not support
	RulePodTemplate     Rule = "pod-template"     // a template that the strategic merge or the API server would reject
	RuleProtectedField  Rule = "protected-field"  // a part of a Pod or a container that belongs to the agent
	RuleManifest        Rule = "manifest"         // a manifest without a configuration, template or variable
	RuleUnreadable      Rule = "unreadable"       // a file to check that cannot be read
	RuleClearText       Rule = "clear-text"       // a token that travels without TLS
	RuleLoopback        Rule = "loopback"         // a service that jobs in containers cannot reach
	RuleUnknownValue    Rule = "unknown-value"    // a variable whose value only the cluster has
	RuleInternal        Rule = "internal"         // an error of the program itself
)

// RuleInfo describes a rule.
type RuleInfo struct {
	Rule        Rule
	Description string // one sentence, without a full stop
}

// Rules returns every rule with its description. Reports refer to rules by index, so new
// rules are added at the end.
func Rules() []RuleInfo {
	return []RuleInfo{
		{RuleUnreadable, "A file to check cannot be read"},
		{RuleSyntax, "A file is not YAML, or is not one mapping"},
		{RuleSize, "A file is too large, or has too many values"},
		{RuleDuplicateKey, "A key is set twice in one mapping"},
		{RuleUnknownKey, "A key is unknown"},
		{RuleUnknownVariable, "A variable of the agent is unknown"},
		{RuleOldName, "A name of an earlier release is used"},
		{RuleUnused, "A setting has no effect"},
		{RuleValue, "A value has the wrong type or is out of bounds"},
		{RuleMissingToken, "There are no credentials"},
		{RuleCredentials, "Credentials contradict each other or are incomplete"},
		{RuleReadableToken, "Other users can read a token"},
		{RuleFile, "A file that a key names cannot be used"},
		{RuleMissingFile, "A file that a key names does not exist or cannot be read"},
		{RulePools, "Pools conflict with each other"},
		{RulePollRate, "All pools together poll the service very often"},
		{RuleTimes, "Durations conflict with each other"},
		{RulePodTemplate, "The API server would reject a Pod template"},
		{RuleProtectedField, "A Pod template changes fields that belong to the agent"},
		{RuleManifest, "A manifest has no configuration, template or variable"},
		{RuleInternal, "The program has an internal error"},
		{RuleRelease, "This release does not support a setting"},
		{RuleOverlaid, "A variable overrides a key of the file"},
		{RulePlaceholder, "A token is a placeholder"},
		{RuleClearText, "A token would be sent without TLS"},
		{RuleLoopback, "Jobs in containers cannot reach the service"},
		{RuleUnknownValue, "The value of a variable is not in the manifests"},
	}
}
