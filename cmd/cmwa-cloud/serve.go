package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/lmittmann/tint"
	"golang.org/x/sync/errgroup"

	"github.com/cmwa-project/cmwa/cloud/server"
	"github.com/cmwa-project/cmwa/cloud/server/idtoken"
	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/cmd/cli/command"
)

// Timeouts of the HTTP server.
const (
	headerTimeout   = 10 * time.Second
	readTimeout     = time.Minute
	writeTimeout    = 2 * time.Minute
	idleTimeout     = 5 * time.Minute
	shutdownTimeout = 10 * time.Second // for active calls when the service ends
)

func serveCommand(s stdio) command.Command {
	listen, format, heartbeatLimit, leaseDuration, leaseStop := "127.0.0.1:8585", "text", "10m", "1m", "70s"
	options := server.Options{DefaultImage: "pulumi/pulumi", Organization: "organization"}
	var issuers []string
	retention := defaultRetention()
	return command.Command{
		Name: "serve", Help: "run the service until SIGTERM or SIGINT", Daemon: true,
		Forms: []command.Form{{
			command.AnyOf(
				command.String(&options.Directory, "data", command.Text("DIRECTORY"),
					"directory of all data (required); made if it does not exist"),
				command.String(&listen, "listen", command.Text("HOST:PORT"),
					"address of the service; port 0 chooses a free one"),
				command.String(&format, "log-format", command.OneOf("text", "json"), "format of the log"),
				command.String(&heartbeatLimit, "heartbeat-limit", command.Text("DURATION"),
					"a claimed job fails after this time without a heartbeat"),
				command.String(&leaseDuration, "lease-duration", command.Text("DURATION"),
					"a scan or policy evaluation is leased for this time, and its agent renews the lease"),
				command.String(&leaseStop, "lease-stop-time", command.Text("DURATION"),
					"started work is leased again this long after its lease has expired, so that its runner can stop"),
				command.String(&options.PublicURL, "public-url", command.URL,
					"URL of the service for jobs; otherwise the URL at which their agent calls it"),
				command.String(&options.DefaultImage, "default-image", command.Image,
					"container image of jobs that name none"),
				command.String(&options.Organization, "organization", command.Name,
					"organization to make at the first start"),
				command.Repeated(&issuers, "oidc-issuer", command.Text("URL=JWKS_FILE[,CLAIM=PATTERN]...[,pool=POOL]"),
					"OIDC issuer whose tokens agents may exchange for pool tokens; a token must have every claim, "+
						"such as 'sub=repo:acme/*'; the file is read at the start"),
				command.String(&retention.logBytes, "max-log-bytes", command.Text("SIZE"),
					"bytes stored of the log of one step: its beginning and its end; 0 for all"),
				command.String(&retention.deployments, "keep-deployments", command.Text("NUMBER"),
					"deployments to keep of each stack; 0 for all"),
				command.String(&retention.age, "keep-age", command.Text("DURATION"),
					"how long to keep ended deployments, such as 90d; 0 for ever"),
				command.String(&retention.freeDisk, "min-free-disk", command.Text("SIZE"),
					"with less space, logs are not stored and new work is refused; 0 for no limit"),
			),
		}},
		Run: func(ctx context.Context, _ []string) error {
			if options.Directory == "" {
				return cli.Usagef("serve needs --data DIRECTORY: the directory of all data")
			}
			var err error
			if options.HeartbeatLimit, err = positive("--heartbeat-limit", heartbeatLimit); err != nil {
				return err
			}
			if options.LeaseDuration, err = positive("--lease-duration", leaseDuration); err != nil {
				return err
			}
			if options.LeaseStop, err = positive("--lease-stop-time", leaseStop); err != nil {
				return err
			}
			if options.Retention, err = retention.parse(); err != nil {
				return err
			}
			for _, text := range issuers {
				issuer, err := readIssuer(text)
				if err != nil {
					return err
				}
				options.Issuers = append(options.Issuers, issuer)
			}

			options.Log = newLogger(s.stderr, format)
			return serve(ctx, listen, options, s)
		},
	}
}

// positive returns the duration of a flag, which must be greater than 0.
func positive(flag, text string) (time.Duration, error) {
	duration, err := time.ParseDuration(text)
	if err != nil {
		return 0, cli.Usagef("%s must be a duration such as 10m", flag)
	}
	if duration <= 0 {
		return 0, cli.Usagef("%s must be greater than 0", flag)
	}
	return duration, nil
}

// maxJWKS limits a file of keys in bytes.
const maxJWKS = 1 << 20

// readIssuer reads an issuer and its file of keys.
func readIssuer(text string) (idtoken.Issuer, error) {
	issuer, path, err := idtoken.ParseIssuer(text)
	if err != nil {
		return idtoken.Issuer{}, cli.Usagef("--oidc-issuer %v", err)
	}
	file, err := os.Open(path)
	if err != nil {
		return idtoken.Issuer{}, fmt.Errorf("read the keys of %s: %w", issuer.URL, err)
	}
	defer file.Close()
	issuer.Keys, err = io.ReadAll(io.LimitReader(file, maxJWKS+1))
	if err != nil {
		return idtoken.Issuer{}, fmt.Errorf("read the keys of %s: %w", issuer.URL, err)
	}
	if len(issuer.Keys) > maxJWKS {
		return idtoken.Issuer{}, fmt.Errorf("read the keys of %s: %s is larger than %d KiB, so it is no JWKS document",
			issuer.URL, path, maxJWKS>>10)
	}
	return issuer, nil
}

// newLogger returns a logger for the format text or json.
func newLogger(sink io.Writer, format string) *slog.Logger {
	if format == "json" {
		return slog.New(slog.NewJSONHandler(sink, nil))
	}
	return slog.New(tint.NewTextHandler(sink, &tint.Options{TimeFormat: "2006-01-02T15:04:05.000Z07:00",
		NoColor: true}))
}

// listenAddress returns the host of an address to listen on, with the port of the listener, which may
// have been chosen by the system. For 0.0.0.0, Go reports the address [::].
func listenAddress(address string, bound net.Addr) string {
	host, _, err := net.SplitHostPort(address)
	_, port, boundErr := net.SplitHostPort(bound.String())
	if err != nil || boundErr != nil || host == "" {
		return bound.String()
	}
	return net.JoinHostPort(host, port)
}

// serve runs the listener and the regular work of the service until ctx ends. If one of them
// fails, the other stops too.
func serve(ctx context.Context, address string, options server.Options, s stdio) (err error) {
	service, err := server.Open(ctx, options)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, service.Close()) }()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("listen: %w: choose another address with --listen", err)
	}
	web := &http.Server{
		Handler: service.Handler(), ReadHeaderTimeout: headerTimeout, ReadTimeout: readTimeout,
		WriteTimeout: writeTimeout, IdleTimeout: idleTimeout,
		ErrorLog: slog.NewLogLogger(options.Log.Handler(), slog.LevelDebug),
	}
	fmt.Fprintf(s.stdout, "listening on http://%s (the access token is in %s)\n",
		listenAddress(address, listener.Addr()), filepath.Join(options.Directory, server.AccessTokenFile))

	all, ctx := errgroup.WithContext(ctx)
	all.Go(func() error { return service.Run(ctx) })
	all.Go(func() error {
		if err := web.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve: %w", err)
		}
		return nil
	})
	all.Go(func() error {
		<-ctx.Done()
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
		defer cancel()
		if err := web.Shutdown(limited); err != nil {
			return errors.Join(fmt.Errorf("wait for active calls: %w", err), web.Close())
		}
		return nil
	})
	return all.Wait()
}
