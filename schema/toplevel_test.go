package schema_test

import (
	"strings"
	"testing"

	"github.com/cmwa-project/cmwa/schema"
)

func TestTopLevelScalar(t *testing.T) {
	for name, test := range map[string]struct{ content, want string }{
		"a number":                              {"token: pul-a\nport: 7001\n", "7001"},
		"a text in quotes":                      {`"port": '7001' # ours`, "7001"},
		"JSON":                                  {`{"token": "a\/b", "port": 7001}`, "7001"},
		"an alias":                              {"address: &a 10.0.0.5\nport: *a\n", "10.0.0.5"},
		"lines that end as on Windows":          {"token: [\r\nport: 7001\r\n", "7001"},
		"the first of two":                      {"port: 7001\nport: 7002\n", "7001"},
		"beside an invalid value":               {"log_level: loud\nport: 7001\n", "7001"},
		"behind a syntax error":                 {"token: [\n\"port\": \"7001\" # ours\n", "7001"},
		"before a syntax error":                 {"port: 7001\ntoken: [\n", "7001"},
		"the first of two, with a syntax error": {"port:\nport: 7001\nport: 7002\ntoken: [\n", "7001"},
		"the second of two documents":           {"a: b\n---\nport: 7001\n", "7001"},
		"a file that is too large":              {"port: 7001\n" + strings.Repeat("# a comment\n", 1<<17), "7001"},
		"an inner key":                          {"pools:\n- name: a\n  port: 7001\n", ""},
		"an inner key, with a syntax error":     {"pools: [\n  port: 7001\n", ""},
		"a key in a text":                       {"port_note: |\n  port: 7001\n", ""},
		"a list":                                {"port: [7001]\n", ""},
		"a mapping":                             {"port: {a: 7001}\n", ""},
		"null":                                  {"port: null\n", ""},
		"nothing":                               {"", ""},
		"no mapping":                            {"port\n", ""},
		"no text":                               {"\x00\x01", ""},
		"another key":                           {"port_of_mine: 7001\ntoken: [\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got := schema.TopLevelScalar([]byte(test.content), "port"); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}
