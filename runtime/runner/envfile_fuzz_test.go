package runner

import (
	"strings"
	"testing"
)

func FuzzParseEnvFile(f *testing.F) {
	for _, seed := range []string{"A=1\n", "A=1\r\nB = 2\n\n# C=3\n", "=\x00\n", "A", "\xff=\xfe", "A=1=2"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		variables, problems := parseEnvFile(text)
		for _, v := range variables {
			if variableProblem(v.name, v.value) != "" || strings.ContainsAny(v.value, "\n") ||
				!strings.Contains(text, v.name+"="+v.value) {
				t.Errorf("%q sets %q to %q, want a valid variable from a line of the text", text, v.name, v.value)
			}
		}
		if len(problems) > maxEnvProblems+1 || len(variables) > strings.Count(text, "=") {
			t.Errorf("%q gives %d variables and %d problems, want fewer", text, len(variables), len(problems))
		}
	})
}
