// Package statements has statements, each with the finding that TestRun wants.
package statements

import "database/sql"

type kind struct{}

func (kind) sql(query string) string { return query }

func get[T any](db *sql.DB, query string) {}

func statement() string { return `` }

const constant = `SELECT a FROM t`

func taken(db *sql.DB) {
	get[int](db, `SELECT a FROM t WHERE b IN (?, ?) LIMIT ? OFFSET ?`)
	get[int](db, `WITH x AS (SELECT a FROM t) SELECT a FROM x`)
	get[int](db, `UPDATE t SET a = 1 WHERE b IN (SELECT b FROM u)`)
	get[int](db, constant+` WHERE a = ?`)
	get[int](db, kind{}.sql(`SELECT a FROM {steps} WHERE {owner} = ?`))
}

func refused(db *sql.DB) {
	get[int](db, kind{}.sql(`SELECT lines FROM {steps}`))                                       // want "does not take"
	get[int](db, constant+` RETURNING b`)                                                       // want "does not take"
	get[int](db, `INSERT OR REPLACE INTO t VALUES (1)`)                                         // want "does not take"
	get[int](db, `INSERT INTO t VALUES (1) ON CONFLICT DO NOTHING`)                             // want "does not take"
	get[int](db, `SELECT a FROM t WHERE a = ?1`)                                                // want "does not take"
	get[int](db, `SELECT a || b FROM t`)                                                        // want "CONCAT"
	get[int](db, `UPDATE t SET a = 1 WHERE b = (SELECT max(b) FROM t)`)                         // want "changes: t"
	get[int](db, `DELETE FROM t WHERE b IN (SELECT b FROM u JOIN T ON u.a = T.a)`)              // want "changes: t"
	get[int](db, `WITH x AS (SELECT a FROM u) UPDATE t SET a = 1 WHERE a IN (SELECT a FROM x)`) // want "MariaDB"
	get[int](db, statement())                                                                   // want "not a constant"
}
