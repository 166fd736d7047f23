package page

import (
	"testing"
	"time"
)

func TestPlain(t *testing.T) {
	for line, want := range map[string]string{
		"a\tb\n":                           "a\tb",
		"\x1b[38;5;13m\x1b[1mred\x1b[0m é": "red é",
		"\x1b[":                            "",
		"a\x1b":                            "a",
		"\x1b]0;title\x07rest":             "]0;titlerest",
		"1 [2] A\r\n":                      "1 [2] A",
		"\xff":                             "\ufffd",
	} {
		if got := plain(line); got != want {
			t.Errorf("plain(%q) = %q, want %q", line, got, want)
		}
	}
}

func TestAgo(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Minute: "now", 0: "now", 59 * time.Second: "59 s ago", 61 * time.Second: "1 min ago",
		47 * time.Hour: "47 h ago", 49 * time.Hour: "2 days ago",
	} {
		if got := ago(d); got != want {
			t.Errorf("ago(%s) = %q, want %q", d, got, want)
		}
	}
}

func TestTook(t *testing.T) {
	start := time.Unix(1, 0)
	for d, want := range map[time.Duration]string{
		0: "0 s", -time.Second: "0 s", 65 * time.Second: "1 min 5 s", 90 * time.Minute: "1 h 30 min",
	} {
		if got := took(start, start.Add(d)); got != want {
			t.Errorf("took(%s) = %q, want %q", d, got, want)
		}
	}
	if got := took(time.Time{}, start); got != "" {
		t.Errorf("took without a start = %q", got)
	}
}

func TestCount(t *testing.T) {
	for n, want := range map[int]string{
		0: "0 rows", 1: "1 row", 999: "999 rows", 12345: "12,345 rows", 1000000: "1,000,000 rows",
	} {
		if got := count(n, "row"); got != want {
			t.Errorf("count(%d) = %q, want %q", n, got, want)
		}
	}
}
