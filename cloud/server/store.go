package server

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"time"

	_ "modernc.org/sqlite" // the driver "sqlite"
)

// store is the database: one file, one connection that writes, a few that read.
// See the package's documentation for why every write is synced.
type store struct {
	writer *sql.DB // one connection, whose transactions take the write lock at their start
	reader *sql.DB // each transaction sees one state
}

// readers is the number of connections that read.
const readers = 4

// openStore opens the database of a folder, and brings its schema up to date.
func openStore(ctx context.Context, folder string) (*store, error) {
	path := filepath.Join(folder, "cloud.db")
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the database: %w", err)
	}
	if err := file.Close(); err != nil {
		return nil, fmt.Errorf("open the database: %w", err)
	}
	writer, err := connect(path, "immediate", 1)
	if err != nil {
		return nil, err
	}
	if err := migrate(ctx, writer); err != nil {
		return nil, errors.Join(err, writer.Close())
	}
	reader, err := connect(path, "deferred", readers)
	if err != nil {
		return nil, errors.Join(err, writer.Close())
	}
	return &store{writer, reader}, nil
}

func connect(path, lock string, connections int) (*sql.DB, error) {
	place := url.URL{Scheme: "file", Opaque: (&url.URL{Path: path}).EscapedPath(), RawQuery: url.Values{
		"_txlock": {lock},
		"_pragma": {"busy_timeout(10000)", "journal_mode(WAL)", "synchronous(FULL)", "foreign_keys(ON)"},
	}.Encode()}
	db, err := sql.Open("sqlite", place.String())
	if err != nil {
		return nil, fmt.Errorf("open the database: %w", err)
	}
	db.SetMaxOpenConns(connections)
	db.SetMaxIdleConns(connections)
	return db, nil
}

// close lets go of the file. The reader goes first, so that the writer, as the
// last one, folds the write-ahead log into the database.
func (s *store) close() error { return errors.Join(s.reader.Close(), s.writer.Close()) }

// write does something within one transaction, which is on the disk when write
// returns without an error. An error of do undoes all of it.
func (s *store) write(ctx context.Context, do func(*tx) error) error {
	return within(ctx, s.writer, do)
}

// read does something that sees one state of the database.
func (s *store) read(ctx context.Context, do func(*tx) error) error {
	return within(ctx, s.reader, do)
}

// errNothing makes a transaction end without a change and without an error.
var errNothing = errors.New("nothing to do")

func within(ctx context.Context, db *sql.DB, do func(*tx) error) error {
	begun, err := db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("begin a transaction: %w", err)
	}
	if err := do(&tx{ctx, begun}); err != nil {
		_ = begun.Rollback()
		if errors.Is(err, errNothing) {
			return nil
		}
		return err
	}
	if err := begun.Commit(); err != nil {
		return fmt.Errorf("end a transaction: %w", err)
	}
	return nil
}

// tx is a transaction, with the context of the call that it serves.
type tx struct {
	ctx context.Context // a transaction does not outlive the call it is made for
	*sql.Tx
}

// exec changes rows and tells how many.
func (t *tx) exec(query string, args ...any) (int64, error) {
	result, err := t.ExecContext(t.ctx, query, args...)
	if err != nil {
		return 0, fmt.Errorf("write to the database: %w", err)
	}
	return result.RowsAffected()
}

// get reads one row into places; found is false when there is none.
func (t *tx) get(places []any, query string, args ...any) (found bool, err error) {
	err = t.QueryRowContext(t.ctx, query, args...).Scan(places...)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read from the database: %w", err)
	}
	return true, nil
}

// rows reads every row of a question through one function.
func rows[T any](t *tx, scan func(scan func(...any) error) (T, error), query string, args ...any) ([]T, error) {
	found, err := t.QueryContext(t.ctx, query, args...)
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

// Times stand in the database as nanoseconds since 1970, and 0 is "not yet".

func stamp(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

func unstamp(n int64) time.Time {
	if n == 0 {
		return time.Time{}
	}
	return time.Unix(0, n).UTC()
}
