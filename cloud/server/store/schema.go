package store

import (
	"context"
	"database/sql"
	"embed"
	"fmt"
	"io/fs"

	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/database"
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

// adopt records the first step as applied in a database that was created by a release without migrations.
// Such a release set user_version to 1.
func adopt(ctx context.Context, db *sql.DB) error {
	versions, err := database.NewStore(database.DialectSQLite3, goose.DefaultTablename)
	if err != nil {
		return fmt.Errorf("migrate the database: %w", err)
	}
	return inTransaction(ctx, db, func(t *Tx) error {
		var version int
		if _, err := t.Get([]any{&version}, `PRAGMA user_version`); err != nil || version == 0 {
			return err
		}
		if err := versions.CreateVersionTable(ctx, t.Tx); err != nil {
			return fmt.Errorf("migrate the database: %w", err)
		}
		for _, step := range []int64{0, 1} {
			if err := versions.Insert(ctx, t.Tx, database.InsertRequest{Version: step}); err != nil {
				return fmt.Errorf("migrate the database: %w", err)
			}
		}
		_, err := t.Exec(`PRAGMA user_version = 0`)
		return err
	})
}
