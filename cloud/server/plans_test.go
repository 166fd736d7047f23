package server

import (
	"context"
	"regexp"
	"strings"
	"sync"
)

// examined contains the statements whose plans examine has seen in this process.
var examined sync.Map

// smallTables are those that a query may read without an index. They have few rows.
var smallTables = map[string]bool{"organizations": true, "users": true, "pools": true}

// examine fails the test if the database reads a whole table for a statement of the service.
func (w *world) examine(query string, args []any) {
	if _, again := examined.LoadOrStore(query, true); again {
		return
	}
	plan, err := w.explain(query, args)
	if err != nil {
		w.t.Errorf("explain %s: %v", query, err)
	}
	for _, line := range plan {
		if name, ok := strings.CutPrefix(line, "SCAN "); ok && !smallTables[tableOf(query, name)] {
			w.t.Errorf("this statement reads a whole table:\n%s\nIts plan is:\n%s", query, strings.Join(plan, "\n"))
		}
	}
}

// explain returns the lines of the plan of a statement.
func (w *world) explain(query string, args []any) ([]string, error) {
	db := w.database()
	defer db.Close()
	rows, err := db.QueryContext(context.Background(), "EXPLAIN QUERY PLAN "+query, args...)
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
	named := regexp.MustCompile(before + `(\w+)\s+(?:AS\s+)?` + name + `\b`).FindStringSubmatch(query)
	if named != nil {
		return named[1]
	}
	if regexp.MustCompile(before + name + `\b`).MatchString(query) {
		return name
	}
	return "organizations"
}
