package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cmwa-project/cmwa/cloud/server/keys"
	"github.com/cmwa-project/cmwa/cloud/server/store"
)

// Purposes of sealed data and of wrapped keys.
const (
	forValue      = "value"      // of deployment settings; leaves the service as a ciphertext
	forSecret     = "secret"     // of a stack's config or state; leaves the service as a ciphertext
	forDefinition = "definition" // of a job
	forActivity   = "activity "  // followed by the activity's id: the definition of its jobs, under the service's key
	forStack      = "stack "     // followed by the stack's id: its key
	forService    = "service"    // the key of the service
	forSigning    = "signing"    // the key that signs the tokens of jobs, under the service's key
)

// masterKeyFile is the master key in the data directory.
const masterKeyFile = "master.key"

// openMaster reads the master key. Without the option MasterKey it is a file of the data directory, which
// openMaster creates if the directory has no database either. It refuses a database without a key, because a
// new key could not decrypt it.
func openMaster(options Options) (*keys.Local, error) {
	if options.MasterKey != "" {
		return keys.OpenLocal(options.MasterKey)
	}
	path := filepath.Join(options.Directory, masterKeyFile)
	master, err := keys.OpenLocal(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return master, err
	}
	if _, err := os.Stat(filepath.Join(options.Directory, store.File)); err == nil {
		return nil, fmt.Errorf("%s is missing, and the secrets in the database need it: "+
			"restore it, or start with an empty directory", path)
	}
	if err := keys.CreateLocal(path); err != nil {
		return nil, err
	}
	return keys.OpenLocal(path)
}

// serviceKeyName is the name of the service's key in the table meta.
const serviceKeyName = "service key"

// openServiceKey unwraps the service's key. It makes this key in a database without one. It refuses a master key that
// is not the one of this database, before anything is written with it.
func (s *Server) openServiceKey(ctx context.Context) error {
	return s.db.Write(ctx, func(t *store.Tx) error {
		wrapped, found, err := t.Meta(serviceKeyName)
		if err != nil {
			return err
		}
		if !found {
			// A database of an earlier release has no such key, but may have stacks.
			id, wrappedOfStack, found, err := t.AnyStackKey()
			if err != nil {
				return err
			}
			if found {
				if _, err := s.keys.Unwrap(ctx, wrappedOfStack, forStack+id); err != nil {
					return wrongMaster(err)
				}
			}
			if wrapped, err = s.keys.Make(ctx, forService); err != nil {
				return err
			}
			if err := t.AddMeta(serviceKeyName, wrapped); err != nil {
				return err
			}
		}
		s.key, err = s.keys.Unwrap(ctx, wrapped, forService)
		return wrongMaster(err)
	})
}

// ErrMasterKey is the error of [Open] for a master key that is not the key of the database.
var ErrMasterKey = errors.New("the master key is not the key of this database: restore the key that it was made with")

// wrongMaster explains why the first key of a database cannot be unwrapped.
func wrongMaster(err error) error {
	if errors.Is(err, keys.ErrSealed) {
		return ErrMasterKey
	}
	return err
}

// openActivity decrypts the definition of an activity. Earlier releases sealed it with the master key.
func (s *Server) openActivity(ctx context.Context, sealed []byte, id string) ([]byte, error) {
	text, err := s.key.Open(sealed, forActivity+id)
	if err != nil {
		return s.master.Unwrap(ctx, sealed, forActivity+id)
	}
	return text, nil
}

// stackKey unwraps the stored key of a stack.
func (s *Server) stackKey(ctx context.Context, stack string, wrapped []byte) (keys.Key, error) {
	key, err := s.keys.Unwrap(ctx, wrapped, forStack+stack)
	if err != nil {
		return keys.Key{}, fmt.Errorf("decrypt the key of stack %s: %w", stack, err)
	}
	return key, nil
}
