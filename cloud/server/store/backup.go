package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"

	"modernc.org/sqlite"
)

// Copy copies the database of a directory to a new file. Another process may serve the directory: the copy has the
// state of one moment. Before it copies, Copy calls keep with the keys of all objects to which that state refers.
func Copy(ctx context.Context, directory, target string, keep func(objects []string) error) (err error) {
	db, err := connect(filepath.Join(directory, File), "deferred", 1)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	conn, err := db.Conn(ctx)
	if err != nil {
		return fmt.Errorf("copy the database: %w", err)
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	transaction, err := conn.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return fmt.Errorf("copy the database: %w", err)
	}
	defer func() { _ = transaction.Rollback() }()

	objects, err := (&Tx{ctx: ctx, tx: transaction}).objects()
	if err != nil {
		return err
	}
	if err := keep(objects); err != nil {
		return err
	}

	// SQLite copies what this transaction sees, in one step.
	err = conn.Raw(func(driver any) error {
		copying, err := driver.(interface {
			NewBackup(target string) (*sqlite.Backup, error)
		}).NewBackup((&url.URL{Scheme: "file", Opaque: (&url.URL{Path: target}).EscapedPath()}).String())
		if err != nil {
			return err
		}
		_, err = copying.Step(-1)
		return errors.Join(err, copying.Finish())
	})
	if err != nil {
		return fmt.Errorf("copy the database: %w", err)
	}
	return nil
}

// objects returns the keys of all objects. A database of a release that stored no states has none.
func (t *Tx) objects() ([]string, error) {
	if found, err := t.hasTable("states"); err != nil || !found {
		return nil, err
	}
	return rows(t, scanOne[string], `SELECT DISTINCT object FROM states WHERE object <> '' ORDER BY object`)
}

// States calls do for every state of every stack.
func (t *Tx) States(do func(object string, hash []byte) error) error {
	_, err := rows(t, func(scan func(...any) error) (struct{}, error) {
		var object string
		var hash []byte
		err := scan(&object, &hash)
		if err == nil && object != "" {
			err = do(object, hash)
		}
		return struct{}{}, err
	}, `SELECT DISTINCT object, sha256 FROM states`)
	return err
}
