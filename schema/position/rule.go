package position

// Rule is the stable name of what a problem violates. Users select rules by
// name, so a published name never changes its meaning.
type Rule string

// The rules, of configuration files, Pod templates and manifests alike: they are
// one list because reports and documentation show them as one.
const (
	RuleSyntax          Rule = "syntax"           // not YAML, or not one mapping
	RuleSize            Rule = "size"             // larger than MaxFile, or unfolds to too much
	RuleDuplicateKey    Rule = "duplicate-key"    // a key set twice in one mapping
	RuleUnknownKey      Rule = "unknown-key"      // a key that the schema does not know
	RuleUnknownVariable Rule = "unknown-variable" // a PULUMI_AGENT_ variable that the schema does not know
	RuleOldName         Rule = "old-name"         // a name of earlier releases, of a key or a file
	RuleOverlaid        Rule = "overlaid"         // a key of the file that a variable hides
	RuleUnused          Rule = "unused"           // a setting without effect
	RuleValue           Rule = "value"            // a value of the wrong kind or out of bounds
	RuleMissingToken    Rule = "missing-token"    // no credentials at all
	RuleCredentials     Rule = "credentials"      // credentials that contradict each other or are incomplete
	RuleFile            Rule = "file"             // a file that the configuration names cannot be used
	RuleMissingFile     Rule = "missing-file"     // a file that the configuration names is missing or not readable
	RulePlaceholder     Rule = "placeholder"      // a token that is no real one
	RuleReadableToken   Rule = "readable-token"   // a token in a file that others may read
	RulePools           Rule = "pools"            // pools that conflict with each other
	RulePollRate        Rule = "poll-rate"        // all pools together poll the service very often
	RuleTimes           Rule = "times"            // durations that conflict with each other
	RuleRelease         Rule = "release"          // a setting that this release does not support
	RulePodTemplate     Rule = "pod-template"     // what the API server, or the merge before it, would refuse
	RuleProtectedField  Rule = "protected-field"  // a part of a Pod or a container that belongs to the agent
	RuleManifest        Rule = "manifest"         // a manifest without a configuration, template or variable
	RuleUnreadable      Rule = "unreadable"       // a file to check that cannot be read
	RuleInternal        Rule = "internal"         // a fault of the program itself
)

// RuleInfo describes a rule.
type RuleInfo struct {
	Rule        Rule
	Description string // one sentence, without a full stop
}

// Rules returns every rule with its description. Reports refer to rules by index,
// so the order stays and new rules are appended.
func Rules() []RuleInfo {
	return []RuleInfo{
		{RuleUnreadable, "A file to check cannot be read"},
		{RuleSyntax, "A file is not YAML, or not one mapping"},
		{RuleSize, "A file is too large, or unfolds to too much"},
		{RuleDuplicateKey, "A key is set twice in one mapping"},
		{RuleUnknownKey, "A key is not known"},
		{RuleUnknownVariable, "A variable of the agent is not known"},
		{RuleOldName, "A name is one of earlier releases"},
		{RuleUnused, "A setting has no effect"},
		{RuleValue, "A value is of the wrong kind or out of bounds"},
		{RuleMissingToken, "There are no credentials"},
		{RuleCredentials, "Credentials contradict each other or are incomplete"},
		{RuleReadableToken, "A token lies where others may read it"},
		{RuleFile, "A file that a key names cannot be used"},
		{RuleMissingFile, "A file that a key names is not there"},
		{RulePools, "Pools do not go together"},
		{RulePollRate, "All pools together ask the service very often"},
		{RuleTimes, "Durations do not fit together"},
		{RulePodTemplate, "A Pod template would be refused"},
		{RuleProtectedField, "A Pod template sets what belongs to the agent"},
		{RuleManifest, "A Kubernetes manifest does not hold what is looked for"},
		{RuleInternal, "The program itself is at fault"},
		{RuleRelease, "This release cannot carry out what a key demands"},
		{RuleOverlaid, "A key of the file is hidden by a variable"},
		{RulePlaceholder, "A token is a placeholder"},
	}
}
