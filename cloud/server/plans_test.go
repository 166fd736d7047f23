package server

import (
	"regexp"
	"runtime"
	"strings"
	"sync"

	"github.com/cmwa-project/cmwa/cloud/server/store"
)

// examined contains the statements whose plans examine has seen in this process.
var examined sync.Map

// smallTables are those that a query may read without an index. They have few rows.
var smallTables = map[string]bool{"organizations": true, "users": true, "pools": true}

// examine fails the test if the database reads a whole table for a statement of the service.
func (w *world) examine(t *store.Tx, query string, args []any) {
	if ofTest() {
		return
	}
	if _, again := examined.LoadOrStore(query, true); again {
		return
	}
	plan, err := explain(t, query, args)
	if err != nil {
		w.t.Errorf("explain %s: %v", query, err)
	}
	for _, line := range plan {
		if name, ok := strings.CutPrefix(line, "SCAN "); ok && !smallTables[tableOf(query, name)] {
			w.t.Errorf("this statement reads a whole table:\n%s\nIts plan is:\n%s", query, strings.Join(plan, "\n"))
		}
	}
}

// ofTest reports whether the statement stands in a test: its text comes from the first caller outside of store.go.
func ofTest() bool {
	callers := make([]uintptr, 10)
	frames := runtime.CallersFrames(callers[:runtime.Callers(3, callers)])
	for {
		frame, more := frames.Next()
		if !strings.HasSuffix(frame.File, "/store/store.go") || !more {
			return strings.HasSuffix(frame.File, "_test.go")
		}
	}
}

// explain returns the lines of the plan of a statement.
func explain(t *store.Tx, query string, args []any) ([]string, error) {
	rows, err := t.Query("EXPLAIN QUERY PLAN "+query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var plan []string
	for rows.Next() {
		var id, parent, unused int
		var detail string
		if err := rows.Scan(&id, &parent, &unused, &detail); err != nil {
			return nil, err
		}
		plan = append(plan, detail)
	}
	return plan, rows.Err()
}

// tableOf returns the table that a plan names, often by its alias in the query. It returns organizations, which is
// small, if the name is that of no table, such as CONSTANT ROW.
func tableOf(query, name string) string {
	name, _, _ = strings.Cut(name, " ")
	const before = `(?i)(?:\b(?:FROM|JOIN|INTO|UPDATE)|,)\s+`
	if named := regexp.MustCompile(before + `(\w+)\s+(?:AS\s+)?` + name + `\b`).FindStringSubmatch(query); named != nil {
		return named[1]
	}
	if regexp.MustCompile(before + name + `\b`).MatchString(query) {
		return name
	}
	return "organizations"
}
