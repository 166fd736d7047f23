package server

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
)

func TestApplySchema(t *testing.T) {
	w := newWorld(t)
	w.close()
	db, err := connect(filepath.Join(w.directory, "cloud.db"), "immediate", 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := run(context.Background(), db, `PRAGMA user_version = 7`); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	_, err = Open(context.Background(), Options{Directory: w.directory})
	const want = "its schema has version 7 and this program supports version 1: use the release that wrote it"
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("the database of another release is not refused: %v", err)
	}
}
