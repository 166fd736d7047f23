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
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/cmwa-project/cmwa/cloud/server/idtoken"
	"github.com/cmwa-project/cmwa/cloud/server/keys"
	"github.com/cmwa-project/cmwa/cloud/server/objects"
	"github.com/cmwa-project/cmwa/schema/secret"

	"github.com/cmwa-project/cmwa/cloud/server/store"
)

// Options are the options of a Server. All fields except Directory are optional.
type Options struct {
	Directory string       // directory of all data; created with mode 0700 if it does not exist
	Log       *slog.Logger // nil logs nothing
	Objects   string       // directory of the states of stacks; empty means objects in Directory
	MasterKey string       // file of the master key, or its directory; empty means master.key in Directory
	Version   string       // of the program, for GET /api/status and metrics

	HeartbeatLimit time.Duration    // a claimed job fails after this time without a heartbeat; 0 means 10 minutes
	LeaseDuration  time.Duration    // a scan or policy evaluation is leased for this time; 0 means a minute
	UpdateLease    time.Duration    // an update of a stack fails when its client does not renew it; 0 means 5 minutes
	LeaseStop      time.Duration    // started work is leased again this long after its lease ended; 0 means 70 seconds
	PublicURL      string           // URL of the service for jobs; empty means the address of the current call
	ConsoleURL     string           // URL of the web page in links; empty means the URL of the service
	Organization   string           // created at the first start; empty means "organization"
	User           string           // created at the first start; empty means "local"
	DefaultImage   string           // image of jobs without one; empty means "pulumi/pulumi"
	Issuers        []idtoken.Issuer // issuers of OIDC tokens that are exchanged for pool tokens
	MetricsSecret  secret.String    // that GET /metrics requires; empty refuses every scrape
	Retention                       // limits of what is stored
}

// AccessTokenFile is the file in the data directory with the first user's token.
const AccessTokenFile = "access-token"

// queueLimit is how long a deployment may wait for an agent (Pulumi's
// documentation of deployments).
const queueLimit = 7 * 24 * time.Hour

// Server is the service. Its methods are safe for concurrent use.
type Server struct {
	options     Options
	log         *slog.Logger
	db          *store.DB
	objects     objects.Bucket
	checks      *lru.Cache[string, *journalCheck] // by update
	largeBodies chan struct{}                     // see [call.waitForTurn]
	master      keys.Master
	keys        *keys.Keys
	key         keys.Key // encrypts what belongs to no stack
	issuers     idtoken.Issuers
	logins      *failedLogins
	agents      *callTimes
	lock        io.Closer
	instance    string                                // id of this Server in the database
	page        http.Handler                          // the web page
	freeSpace   func(directory string) (int64, error) // replaced by tests
	signing     sync.Mutex                            // of signs
	signs       *idtoken.Signer                       // nil before the first use
	diskFull    atomic.Bool                           // the last measurement was below MinFreeDisk
	failing     sync.Map                              // names of the checks that failed last
	metrics     *metrics
}

// Open opens a data directory. In a new directory it creates an organization, a user, and the
// user's access token in the file [AccessTokenFile]. Only one Server at a time can use a
// directory.
func Open(ctx context.Context, options Options) (*Server, error) {
	if options.Directory == "" {
		return nil, errors.New("open the data directory: its name is missing")
	}
	if err := os.MkdirAll(options.Directory, 0o700); err != nil {
		return nil, fmt.Errorf("create the data directory: %w", err)
	}
	if err := os.Chmod(options.Directory, 0o700); err != nil {
		return nil, fmt.Errorf("restrict access to the data directory: %w", err)
	}
	lock, err := store.LockDirectory(options.Directory)
	if err != nil {
		return nil, err
	}
	s, err := open(ctx, options)
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	s.lock = lock
	return s, nil
}

// open is Open without the lock of the directory. Several instances may use one database: see Several instances in the
// documentation of the package.
func open(ctx context.Context, options Options) (*Server, error) {
	options = options.withDefaults()
	issuers, err := idtoken.Open(options.Issuers)
	if err != nil {
		return nil, err
	}
	checks, err := lru.New[string, *journalCheck](cachedChecks)
	if err != nil {
		return nil, err
	}
	master, err := openMaster(options)
	if err != nil {
		return nil, err
	}
	bucket, err := objects.Open(options.Objects)
	if err != nil {
		return nil, err
	}
	db, err := store.Open(ctx, options.Directory)
	if err != nil {
		return nil, err
	}

	s := &Server{
		options: options, log: options.Log, db: db, objects: bucket,
		checks: checks, largeBodies: make(chan struct{}, 1), lock: io.NopCloser(nil), // Open sets the lock
		master: master, keys: keys.New(master), issuers: issuers, logins: newFailedLogins(),
		agents: newCallTimes(), freeSpace: freeSpace, metrics: newMetrics(options.Version), instance: newID(),
	}
	if err := s.openServiceKey(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	if s.page, err = s.pages(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	if err := s.bootstrap(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (o Options) withDefaults() Options {
	setDefault := func(value *string, fallback string) {
		if *value == "" {
			*value = fallback
		}
	}
	setDefault(&o.Objects, filepath.Join(o.Directory, objectsDirectory))
	setDefault(&o.Organization, "organization")
	setDefault(&o.User, "local")
	setDefault(&o.DefaultImage, "pulumi/pulumi")
	o.PublicURL, o.ConsoleURL = strings.TrimRight(o.PublicURL, "/"), strings.TrimRight(o.ConsoleURL, "/")
	if o.HeartbeatLimit <= 0 {
		o.HeartbeatLimit = 10 * time.Minute
	}
	if o.LeaseDuration <= 0 {
		o.LeaseDuration = time.Minute
	}
	if o.UpdateLease <= 0 {
		o.UpdateLease = 5 * time.Minute // the CLI assumes this time and ignores the expiration of its token
	}
	if o.LeaseStop <= 0 {
		// 30 seconds until the next heartbeat of the runner, 2 until a second one confirms its
		// refusal, 25 for the steps to end after SIGTERM, and some for slow calls.
		o.LeaseStop = 70 * time.Second
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

// Close closes the directory. All calls must have ended, and Run must have returned.
func (s *Server) Close() error {
	return errors.Join(s.db.Close(), s.lock.Close())
}

// bootstrap creates the organization, the user and the access token, unless the database has
// a user. It writes the file of the token first, and then the database. After a crash in
// between, the next start replaces the token.
func (s *Server) bootstrap(ctx context.Context) error {
	return s.db.Write(ctx, func(t *store.Tx) error {
		old, err := t.HasUsers()
		if err != nil {
			return err
		}
		if old {
			return store.ErrNoChange
		}
		token := userToken.mint()
		path := filepath.Join(s.options.Directory, AccessTokenFile)
		if err := secret.WriteFile(path, []byte(token.Reveal()+"\n")); err != nil {
			return fmt.Errorf("write the access token: %w", err)
		}
		if err := t.AddOrganization(s.options.Organization); err != nil {
			return err
		}
		if err := t.AddUser(s.options.User); err != nil {
			return err
		}
		return t.AddAccessToken(store.AccessToken{
			ID: newID(), Kind: string(userToken), Subject: s.options.User, Description: "made at the first start",
			Created: time.Now(), CreatedBy: s.options.User,
		}, hash(token))
	})
}

// Handler returns the handler of the API and of the web page.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	s.routes(func(pattern string, handle handler, do action) { mux.Handle(pattern, s.serve(handle, do)) })
	mux.Handle("GET /metrics", s.scrape()) // its secret is not a token of the database
	mux.Handle("/", s.page)                // page.New has its routes, and accepts only sessions of the page
	return s.metrics.observe(mux)
}

// Run does the regular work of the service until ctx ends. It returns lost claims to the
// queue, fails jobs without a heartbeat, skips deployments that waited too long, and ends
// expired leases and abandoned updates. It deletes expired tokens, old activities, deployments
// beyond the limits of [Retention], and unused objects. If several instances use one database, one
// of them does this work.
func (s *Server) Run(ctx context.Context) error {
	shortest := min(s.options.HeartbeatLimit, s.options.LeaseDuration, s.options.UpdateLease)
	interval := min(max(shortest/20, 50*time.Millisecond), 5*time.Second)
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	var pruned, swept time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-ticker.C:
			since, held, err := s.holdBackground(ctx, now, 10*interval)
			if err == nil && !held {
				continue
			}
			if err == nil {
				err = s.expire(ctx, now, since)
			}
			if err != nil && ctx.Err() == nil {
				s.log.Error("expiry failed", "component", "expiry", "error", err)
			}
			if now.Sub(pruned) < pruneInterval {
				continue
			}
			pruned = now
			if err := s.prune(ctx, now); err != nil && ctx.Err() == nil {
				s.log.Error("deletion of old deployments failed", "component", "retention", "error", err)
			}
			if now.Sub(swept) < sweepInterval {
				continue
			}
			swept = now
			if err := s.sweepObjects(ctx, now); err != nil && ctx.Err() == nil {
				s.log.Error("deletion of unused objects failed", "component", "retention", "error", err)
			}
		}
	}
}

// holdBackground takes or renews the lease of the regular work for this instance. Held is false if another instance has
// it. Since is the time since when instances have done the work. Before it the service was down or paused, so that
// heartbeats may have been lost.
func (s *Server) holdBackground(
	ctx context.Context, now time.Time, lease time.Duration,
) (since time.Time, held bool, err error) {
	var duty, next store.Duty
	err = s.db.Read(ctx, func(t *store.Tx) (err error) {
		duty, err = t.Duty(store.Background)
		return err
	})
	if err != nil {
		return since, false, err
	}
	if next, held = duty.Claim(s.instance, now, lease); !held || next == duty {
		return next.Since, held, nil
	}
	err = s.db.Write(ctx, func(t *store.Tx) (err error) {
		held, err = t.SetDuty(store.Background, duty, next)
		return err
	})
	if err == nil && held && next.Since != duty.Since && !duty.Since.IsZero() {
		s.log.Info("the service was down or paused: no job fails for its missing heartbeats", "component", "expiry",
			"since", duty.Expires)
	}
	return next.Since, held, err
}
