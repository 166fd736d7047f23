package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// Options is what a Server is made of. The zero value of everything but Folder
// is usable.
type Options struct {
	Folder string       // of all its data; made with mode 0700 if it is not there
	Log    *slog.Logger // nil is silence

	HeartbeatLimit time.Duration // silence after which a claimed job has failed; 0 is 10 minutes
	PublicURL      string        // as jobs reach the service; empty is the address of the call that asks
	Organization   string        // made at the first start; empty is "organization"
	User           string        // made at the first start; empty is "local"
	DefaultImage   string        // of jobs that name none; empty is "pulumi/pulumi"
	Issuers        []Issuer      // whose OIDC tokens are exchanged for pool tokens; without any, none are
}

// AccessTokenFile is the file in the data folder with the first user's token.
const AccessTokenFile = "access-token"

// queueLimit is how long a deployment may wait for an agent (Pulumi's
// documentation of deployments).
const queueLimit = 7 * 24 * time.Hour

// Server is the service. It is safe for concurrent use.
type Server struct {
	options Options
	log     *slog.Logger
	store   *store
	master  key
	issuers []issuer
	beats   *beats
	agents  *presence
	lock    io.Closer
}

// Open opens a data folder, and furnishes it if it is new: an organisation, a
// user, and the user's access token in the file [AccessTokenFile]. One folder
// serves one Server at a time.
func Open(ctx context.Context, options Options) (*Server, error) {
	if options.Folder == "" {
		return nil, errors.New("open the data folder: name one")
	}
	options = options.withDefaults()
	issuers, err := openIssuers(options.Issuers)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(options.Folder, 0o700); err != nil {
		return nil, fmt.Errorf("make the data folder: %w", err)
	}
	if err := os.Chmod(options.Folder, 0o700); err != nil {
		return nil, fmt.Errorf("close the data folder to others: %w", err)
	}
	lock, err := lockFolder(options.Folder)
	if err != nil {
		return nil, err
	}
	master, err := openMaster(options.Folder)
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	store, err := openStore(ctx, options.Folder)
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	s := &Server{
		options: options, log: options.Log, store: store, master: master, issuers: issuers, lock: lock,
		beats: newBeats(time.Now()), agents: newPresence(),
	}
	if err := s.furnish(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (o Options) withDefaults() Options {
	or := func(value *string, otherwise string) {
		if *value == "" {
			*value = otherwise
		}
	}
	or(&o.Organization, "organization")
	or(&o.User, "local")
	or(&o.DefaultImage, "pulumi/pulumi")
	o.PublicURL = strings.TrimRight(o.PublicURL, "/")
	if o.HeartbeatLimit <= 0 {
		o.HeartbeatLimit = 10 * time.Minute
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

// Close lets go of the folder. No call may be under way, and Run must have
// returned.
func (s *Server) Close() error {
	return errors.Join(s.store.close(), s.lock.Close())
}

// furnish makes the organisation, the user and the access token once. The token
// is written to its file before the database knows it, so a crash in between
// leaves a token that the next start replaces, never a user without one.
func (s *Server) furnish(ctx context.Context) error {
	return s.store.write(ctx, func(t *tx) error {
		var count int
		if _, err := t.get([]any{&count}, `SELECT count(*) FROM users`); err != nil {
			return err
		}
		if count > 0 {
			return errNothing
		}
		token := userToken.mint()
		path := filepath.Join(s.options.Folder, AccessTokenFile)
		if err := writePrivate(path, []byte(token.Reveal()+"\n")); err != nil {
			return fmt.Errorf("write the access token: %w", err)
		}
		if _, err := t.exec(`INSERT INTO organizations (name) VALUES (?)`, s.options.Organization); err != nil {
			return err
		}
		if _, err := t.exec(`INSERT INTO users (name) VALUES (?)`, s.options.User); err != nil {
			return err
		}
		return saveToken(t, token, principal{userToken, s.options.User})
	})
}

// Handler serves the whole API.
func (s *Server) Handler() http.Handler { return s.routes() }

// Run does what is due by time alone, until ctx ends: jobs that fell silent
// have failed, deployments that waited for too long are skipped, tokens that
// have expired are forgotten.
func (s *Server) Run(ctx context.Context) error {
	every := min(max(s.options.HeartbeatLimit/20, 50*time.Millisecond), 15*time.Second)
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-ticker.C:
			if err := s.expire(ctx, now); err != nil && ctx.Err() == nil {
				s.log.Error("look for jobs that fell silent", "component", "duties", "error", err)
			}
		}
	}
}

// beats is when each claimed job was last heard, by deployment. It is not in
// the database: a start counts as a sign of life from every job, because the
// silence before it may have been the service's own.
type beats struct {
	mu    sync.Mutex
	start time.Time
	last  map[int64]time.Time
}

func newBeats(start time.Time) *beats { return &beats{start: start, last: map[int64]time.Time{}} }

func (b *beats) heard(deployment int64, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.last[deployment] = now
}

// since is when a job was last heard.
func (b *beats) since(deployment int64) time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	if last, ok := b.last[deployment]; ok {
		return last
	}
	return b.start
}

func (b *beats) forget(deployment int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.last, deployment)
}
