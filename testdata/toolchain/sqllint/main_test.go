package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestRun checks one statement at a time.
func TestRun(t *testing.T) {
	for statement, want := range map[string]string{
		"`SELECT a FROM t WHERE b IN (?, ?) LIMIT ? OFFSET ?`":                          "",
		"`WITH x AS (SELECT a FROM t) SELECT a FROM x`":                                 "",
		"`UPDATE t SET a = 1 WHERE b IN (SELECT b FROM u)`":                             "",
		"constant + ` WHERE a = ?`":                                                     "",
		"kind{}.sql(`SELECT a FROM {steps} WHERE {owner} = ?`)":                         "",
		"kind{}.sql(`SELECT lines FROM {steps}`)":                                       "does not take",
		"constant + ` RETURNING b`":                                                     "does not take",
		"`INSERT OR REPLACE INTO t VALUES (1)`":                                         "does not take",
		"`INSERT INTO t VALUES (1) ON CONFLICT DO NOTHING`":                             "does not take",
		"`SELECT a FROM t WHERE a = ?1`":                                                "does not take",
		"`SELECT a || b FROM t`":                                                        "CONCAT",
		"`UPDATE t SET a = 1 WHERE b = (SELECT max(b) FROM t)`":                         "changes: t",
		"`DELETE FROM t WHERE b IN (SELECT b FROM u JOIN T ON u.a = T.a)`":              "changes: t",
		"`WITH x AS (SELECT a FROM u) UPDATE t SET a = 1 WHERE a IN (SELECT a FROM x)`": "MariaDB",
		"statement()": "not a constant",
	} {
		directory := t.TempDir()
		text := "package p\n\nimport \"database/sql\"\n\ntype kind struct{}\n\n" +
			"func (kind) sql(query string) string { return query }\n\n" +
			"func get[T any](db *sql.DB, query string) {}\n\n" +
			"func statement() string { return `` }\n\n" +
			"const constant = `SELECT a FROM t`\n\n" +
			"func f() { get[int](nil, " + statement + ") }\n"
		if err := os.WriteFile(filepath.Join(directory, "p.go"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		err := run(&out, directory)
		if want == "" && (err != nil || out.Len() > 0) {
			t.Errorf("%s: %v, %s", statement, err, out.String())
		}
		if want != "" && (!errors.Is(err, errFindings) || !strings.Contains(out.String(), "p.go:") ||
			!strings.Contains(out.String(), want)) {
			t.Errorf("%s: %v, %q; want %q", statement, err, out.String(), want)
		}
	}
}
