package runtime

import "strings"

// Pulumi is how pulumi ended in a step that was stopped.
type Pulumi string

// The ends of pulumi.
const (
	PulumiEnded      Pulumi = "ended"      // after the first signal: it has released the lock of the stack
	PulumiTerminated Pulumi = "terminated" // after the second signal: operations may be pending
	PulumiKilled     Pulumi = "killed"     // without a chance to release the lock
)

// maxStack is the longest name of a stack in messages, in bytes.
const maxStack = 150

// ValidStack reports whether a text can be the full name of a stack: organization, project
// and stack, separated by slashes.
func ValidStack(name string) bool {
	const valid = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-"
	parts := strings.Split(name, "/")
	for _, part := range parts {
		if part == "" || strings.Trim(part, valid) != "" {
			return false
		}
	}
	return len(parts) == 3 && len(name) <= maxStack
}

// PulumiCommands returns the commands that make a stack usable again after its pulumi was
// terminated or killed, each with its purpose. If stack is empty, they have a placeholder.
func PulumiCommands(stack string) []string {
	if stack == "" {
		stack = "ORGANIZATION/PROJECT/STACK"
	}
	return []string{
		"  pulumi cancel --yes --stack " + stack + "  # removes the lock",
		"  pulumi stack export --stack " + stack + " --file stack.json  # shows pending_operations",
		"  pulumi refresh --stack " + stack + "  # resolves them; or edit the file, and then:",
		"  pulumi stack import --stack " + stack + " --file stack.json",
	}
}
