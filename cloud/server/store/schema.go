package store

import (
	"context"
	"database/sql"
	"embed"
	"fmt"
	"io/fs"

	"github.com/pressly/goose/v3"
)

// migrations are the steps of the schema. A step that a release contained never changes.
//
//go:embed migrations/*.sql
var migrations embed.FS

// migrate applies the steps of the schema that the database does not have. It refuses the database of a
// later release.
func migrate(ctx context.Context, db *sql.DB) error {
	steps, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return fmt.Errorf("migrate the database: %w", err)
	}
	if err := adopt(ctx, db); err != nil {
		return err
	}
	provider, err := goose.NewProvider(goose.DialectSQLite3, db, steps)
	if err != nil {
		return fmt.Errorf("migrate the database: %w", err)
	}
	have, newest, err := provider.GetVersions(ctx)
	if err != nil {
		return fmt.Errorf("migrate the database: %w", err)
	}
	if have > newest {
		return fmt.Errorf("open the database: its schema has version %d and this program supports version %d: "+
			"use the release that wrote it", have, newest)
	}
	if _, err := provider.Up(ctx); err != nil {
		return fmt.Errorf("migrate the database: %w", err)
	}
	return nil
}

// SchemaVersion returns the number of the last migration of the database.
func (t *Tx) SchemaVersion() (version int64, err error) {
	_, err = t.get([]any{&version}, `SELECT max(version_id) FROM goose_db_version`)
	return version, err
}
