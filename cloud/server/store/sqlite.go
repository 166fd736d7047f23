package store

// This file has what is different in other databases.

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"

	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/database"
	"golang.org/x/sys/unix"
	"modernc.org/sqlite"
	lib "modernc.org/sqlite/lib"
)

// File is the name of the database in its directory.
const File = "cloud.db"

// readers is the number of connections for reads.
const readers = 4

// Open opens the database of a directory, and creates it if it is missing.
func Open(ctx context.Context, directory string) (*DB, error) {
	path := filepath.Join(directory, File)
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
	return &DB{writer: writer, reader: reader}, nil
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

// isDuplicate reports whether a statement failed because its row has the key of another row.
func isDuplicate(err error) bool {
	var e *sqlite.Error
	if !errors.As(err, &e) {
		return false
	}
	return e.Code() == lib.SQLITE_CONSTRAINT_UNIQUE || e.Code() == lib.SQLITE_CONSTRAINT_PRIMARYKEY
}

// LockFile is the name of the lock in a directory.
const LockFile = "lock"

// LockDirectory lets only one process at a time serve a directory, because several machines with one directory on a
// shared file system would damage the database. The lock ends with the process, also after a crash.
func LockDirectory(directory string) (io.Closer, error) {
	file, err := os.OpenFile(filepath.Join(directory, LockFile), os.O_CREATE|os.O_RDWR, 0o600)
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

// adopt records the first step as applied in a database that was created by a release without migrations.
// Such a release set user_version to 1.
func adopt(ctx context.Context, db *sql.DB) error {
	versions, err := database.NewStore(database.DialectSQLite3, goose.DefaultTablename)
	if err != nil {
		return fmt.Errorf("migrate the database: %w", err)
	}
	return inTransaction(ctx, db, func(t *Tx) error {
		var version int
		if _, err := t.get([]any{&version}, `PRAGMA user_version`); err != nil || version == 0 {
			return err
		}
		if err := versions.CreateVersionTable(ctx, t.tx); err != nil {
			return fmt.Errorf("migrate the database: %w", err)
		}
		for _, step := range []int64{0, 1} {
			if err := versions.Insert(ctx, t.tx, database.InsertRequest{Version: step}); err != nil {
				return fmt.Errorf("migrate the database: %w", err)
			}
		}
		_, err := t.exec(`PRAGMA user_version = 0`)
		return err
	})
}

// Limits of the return of free pages to the file system.
const (
	keptPages   = 1024 // free pages that stay in the file, as they are soon used again
	shrinkPages = 500  // in one transaction
)

// Shrink returns free pages of the database to the file system.
func (s *DB) Shrink(ctx context.Context) error {
	for before := int64(-1); ; {
		var free int64
		if err := s.writer.QueryRowContext(ctx, `PRAGMA freelist_count`).Scan(&free); err != nil {
			return fmt.Errorf("count the free pages of the database: %w", err)
		}
		switch {
		case before < 0 && free <= keptPages:
			return nil
		case free <= keptPages, free == before:
			return run(ctx, s.writer, `PRAGMA wal_checkpoint(PASSIVE)`) // the checkpoint shortens the file
		}
		if err := run(ctx, s.writer, fmt.Sprintf(`PRAGMA incremental_vacuum(%d)`, shrinkPages)); err != nil {
			return err
		}
		before = free
	}
}

// run runs a statement of SQLite and ignores the rows that it returns.
func run(ctx context.Context, db *sql.DB, statement string) error {
	found, err := db.QueryContext(ctx, statement)
	if err != nil {
		return fmt.Errorf("shrink the database: %w", err)
	}
	defer found.Close()
	for found.Next() { // reading all rows completes the statement
	}
	if err := found.Err(); err != nil {
		return fmt.Errorf("shrink the database: %w", err)
	}
	return nil
}

// Check reads the whole database, and returns an error if a page or an index is damaged.
func (s *DB) Check(ctx context.Context) error {
	return s.Read(ctx, func(t *Tx) error {
		found, err := rows(t, scanOne[string], `PRAGMA integrity_check(1)`)
		if err == nil && (len(found) != 1 || found[0] != "ok") {
			err = fmt.Errorf("the database is damaged: %v", found)
		}
		return err
	})
}

// hasTable reports whether the database has a table.
func (t *Tx) hasTable(name string) (bool, error) {
	return t.get([]any{new(int)}, `SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?`, name)
}
