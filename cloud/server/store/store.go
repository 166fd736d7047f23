// Package store is the database of the service: its schema, its transactions, and its statements.
//
// All statements use only what SQLite, MySQL 8.0 and MariaDB 10.11 have in common, except those of sqlite.go and of
// the migrations: no RETURNING, ON CONFLICT, OR IGNORE or ?1, no WITH before UPDATE, no ||, no subquery on the changed
// table, no names that MySQL reserves. ErrDuplicate tells that a key exists. Each statement is a constant, and
// testdata/toolchain/sqllint checks it. In MySQL the connection must count matched rows, and not changed ones
// (clientFoundRows).
package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"
)

// DB is the database: one file, one connection for writes, a few for reads. The
// documentation of package server explains why every write is synced.
type DB struct {
	writer *sql.DB // one connection, whose transactions take the write lock at their start
	reader *sql.DB // each transaction sees one state

	observe func(query string, args []any) // see Observe
}

// Close closes the database. It closes the writer last: when the last connection closes,
// SQLite moves the write-ahead log into the database file.
func (s *DB) Close() error { return errors.Join(s.reader.Close(), s.writer.Close()) }

// Write runs do in a transaction. An error of do rolls the transaction back. When Write
// returns without an error, either the transaction is on the disk, or do has returned
// ErrNoChange.
func (s *DB) Write(ctx context.Context, do func(*Tx) error) error {
	return inTransaction(ctx, s.writer, s.observed(do))
}

// Read runs do in a transaction that sees one state of the database.
func (s *DB) Read(ctx context.Context, do func(*Tx) error) error {
	return inTransaction(ctx, s.reader, s.observed(do))
}

// Observe calls f before each statement of a transaction. Tests examine the plans of the
// statements with it. It must be called before the first transaction.
func (s *DB) Observe(f func(query string, args []any)) { s.observe = f }

func (s *DB) observed(do func(*Tx) error) func(*Tx) error {
	return func(t *Tx) error {
		t.observe = s.observe
		return do(t)
	}
}

// ErrNoChange rolls a transaction back without an error.
var ErrNoChange = errors.New("no change")

func inTransaction(ctx context.Context, db *sql.DB, do func(*Tx) error) error {
	transaction, err := db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("begin a transaction: %w", err)
	}
	if err := do(&Tx{ctx: ctx, tx: transaction}); err != nil {
		_ = transaction.Rollback()
		if errors.Is(err, ErrNoChange) {
			return nil
		}
		return err
	}
	if err := transaction.Commit(); err != nil {
		return fmt.Errorf("end a transaction: %w", err)
	}
	return nil
}

// Tx is a transaction, with the context of the call that it serves.
type Tx struct {
	ctx     context.Context // of the call
	tx      *sql.Tx
	observe func(query string, args []any) // nil outside of tests
}

func (t *Tx) before(query string, args []any) {
	if t.observe != nil {
		t.observe(query, args)
	}
}

// ErrDuplicate is the error of a statement whose row has the primary key or a unique key of
// another row. The statement has changed nothing, and the transaction can continue.
var ErrDuplicate = errors.New("there is a row with this key already")

// exec runs a statement and returns the number of changed rows.
func (t *Tx) exec(query string, args ...any) (int64, error) {
	result, err := t.execute(query, args)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

// insert inserts a row and returns the number that the database has given to it.
func (t *Tx) insert(query string, args ...any) (int64, error) {
	result, err := t.execute(query, args)
	if err != nil {
		return 0, err
	}
	return result.LastInsertId()
}

func (t *Tx) execute(query string, args []any) (sql.Result, error) {
	t.before(query, args)
	result, err := t.tx.ExecContext(t.ctx, query, args...)
	if isDuplicate(err) {
		return nil, fmt.Errorf("write to the database: %w: %w", ErrDuplicate, err)
	}
	if err != nil {
		return nil, fmt.Errorf("write to the database: %w", err)
	}
	return result, nil
}

// get scans the first row of a query into dest. Found is false if the query has no row.
func (t *Tx) get(dest []any, query string, args ...any) (found bool, err error) {
	t.before(query, args)
	err = t.tx.QueryRowContext(t.ctx, query, args...).Scan(dest...)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read from the database: %w", err)
	}
	return true, nil
}

// rows calls scan for each row of a query and returns the results. The argument of scan is
// the Scan method of the row.
func rows[T any](t *Tx, scan func(scan func(...any) error) (T, error), query string, args ...any) ([]T, error) {
	t.before(query, args)
	found, err := t.tx.QueryContext(t.ctx, query, args...)
	if err != nil {
		return nil, fmt.Errorf("read from the database: %w", err)
	}
	defer found.Close()
	all := []T{}
	for found.Next() {
		one, err := scan(found.Scan)
		if err != nil {
			return nil, fmt.Errorf("read from the database: %w", err)
		}
		all = append(all, one)
	}
	if err := found.Err(); err != nil {
		return nil, fmt.Errorf("read from the database: %w", err)
	}
	return all, nil
}

// one returns the first row of a query. Found is false if the query has no row.
func one[T any](
	t *Tx, scan func(func(...any) error) (T, error), query string, args ...any,
) (row T, found bool, err error) {
	all, err := rows(t, scan, query, args...)
	if err != nil || len(all) == 0 {
		return row, false, err
	}
	return all[0], true, nil
}

// scanOne scans a row with one column.
func scanOne[T any](scan func(...any) error) (value T, err error) {
	err = scan(&value) // Go does not specify that "return value, scan(&value)" reads the value after the call
	return value, err
}

// ToNanos returns a time as the database stores it: in nanoseconds since 1970. The zero
// time is 0.
func ToNanos(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

// FromNanos is the inverse of ToNanos.
func FromNanos(n int64) time.Time {
	if n == 0 {
		return time.Time{}
	}
	return time.Unix(0, n).UTC()
}
