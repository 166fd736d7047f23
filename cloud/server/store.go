package server

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	_ "modernc.org/sqlite" // the driver "sqlite"
)

// store is the database: one file, one connection for writes, a few for reads. The
// documentation of the package explains why every write is synced.
type store struct {
	writer *sql.DB // one connection, whose transactions take the write lock at their start
	reader *sql.DB // each transaction sees one state
}

// readers is the number of connections for reads.
const readers = 4

// openStore opens the database of a directory, and creates it if it is missing.
func openStore(ctx context.Context, directory string) (*store, error) {
	path := filepath.Join(directory, "cloud.db")
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
	if err := applySchema(ctx, writer); err != nil {
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
		"_pragma": {"busy_timeout(10000)", "auto_vacuum(INCREMENTAL)", "journal_mode(WAL)",
			"journal_size_limit(16777216)", "synchronous(FULL)", "foreign_keys(ON)"},
	}.Encode()}
	db, err := sql.Open("sqlite", place.String())
	if err != nil {
		return nil, fmt.Errorf("open the database: %w", err)
	}
	db.SetMaxOpenConns(connections)
	db.SetMaxIdleConns(connections)
	return db, nil
}

// close closes the database. It closes the writer last: when the last connection closes,
// SQLite moves the write-ahead log into the database file.
func (s *store) close() error { return errors.Join(s.reader.Close(), s.writer.Close()) }

// write runs do in a transaction. An error of do rolls the transaction back. When write
// returns without an error, either the transaction is on the disk, or do has returned
// errNoChange.
func (s *store) write(ctx context.Context, do func(*tx) error) error {
	return inTransaction(ctx, s.writer, do)
}

// read runs do in a transaction that sees one state of the database.
func (s *store) read(ctx context.Context, do func(*tx) error) error {
	return inTransaction(ctx, s.reader, do)
}

// errNoChange rolls a transaction back without an error.
var errNoChange = errors.New("no change")

func inTransaction(ctx context.Context, db *sql.DB, do func(*tx) error) error {
	transaction, err := db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("begin a transaction: %w", err)
	}
	if err := do(&tx{ctx, transaction}); err != nil {
		_ = transaction.Rollback()
		if errors.Is(err, errNoChange) {
			return nil
		}
		return err
	}
	if err := transaction.Commit(); err != nil {
		return fmt.Errorf("end a transaction: %w", err)
	}
	return nil
}

// tx is a transaction, with the context of the call that it serves.
type tx struct {
	ctx context.Context // of the call
	*sql.Tx
}

// exec runs a statement and returns the number of changed rows.
func (t *tx) exec(query string, args ...any) (int64, error) {
	result, err := t.ExecContext(t.ctx, query, args...)
	if err != nil {
		return 0, fmt.Errorf("write to the database: %w", err)
	}
	return result.RowsAffected()
}

// get scans the first row of a query into dest. Found is false if the query has no row.
func (t *tx) get(dest []any, query string, args ...any) (found bool, err error) {
	err = t.QueryRowContext(t.ctx, query, args...).Scan(dest...)
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

// toNanos returns a time as the database stores it: in nanoseconds since 1970. The zero
// time is 0.
func toNanos(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

// fromNanos is the inverse of toNanos.
func fromNanos(n int64) time.Time {
	if n == 0 {
		return time.Time{}
	}
	return time.Unix(0, n).UTC()
}

// lockDirectory lets only one process at a time serve a directory, because some state is in
// memory only. The lock ends with the process, also after a crash.
func lockDirectory(directory string) (io.Closer, error) {
	file, err := os.OpenFile(filepath.Join(directory, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the data directory: %w", err)
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = fmt.Errorf("another process serves %s: stop it, or use another directory", directory)
		}
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}
