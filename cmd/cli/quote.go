package cli

import "strings"

// Quote returns text as one word of bash, zsh and other POSIX shells, in quotes.
func Quote(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }
