package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/lmittmann/tint"
	"github.com/peterbourgon/ff/v3/ffcli"
	"golang.org/x/sync/errgroup"

	"github.com/cmwa-project/cmwa/cloud/server"
	"github.com/cmwa-project/cmwa/cmd/cli"
)

// Limits of the HTTP server.
const (
	headerLimit = 10 * time.Second
	readLimit   = time.Minute
	writeLimit  = 2 * time.Minute
	idleLimit   = 5 * time.Minute
	closeLimit  = 10 * time.Second // for calls under way when the service ends
)

func serveCommand(w world) *ffcli.Command {
	set := flags(w, "cmwa-cloud serve")
	listen := set.String("listen", "127.0.0.1:8585", "address and port; port 0 is any that is free")
	format := set.String("log-format", "text", "text or json")
	var options server.Options
	set.StringVar(&options.Folder, "data", "", "folder of all data; made if it is not there")
	set.DurationVar(&options.HeartbeatLimit, "heartbeat-limit", 10*time.Minute, "silence after which a claimed job has failed")
	set.StringVar(&options.PublicURL, "public-url", "", "URL by which jobs reach the service; otherwise the one by which their agent does")
	set.StringVar(&options.DefaultImage, "default-image", "pulumi/pulumi", "container image of jobs that name none")
	set.StringVar(&options.Organization, "organization", "organization", "organization that is made at the first start")
	issuers := repeated(set, "oidc-issuer", "URL=JWKS_FILE of an OIDC issuer whose tokens agents may exchange for one of any pool; read at the start; may be repeated")
	return &ffcli.Command{
		Name: "serve", ShortUsage: "cmwa-cloud serve --data FOLDER [FLAGS]",
		ShortHelp: "run the service until a TERM or INT", FlagSet: set,
		Exec: func(ctx context.Context, args []string) error {
			if _, err := arguments(set, args); err != nil {
				return err
			}
			if options.Folder == "" {
				return cli.Usagef("serve needs --data FOLDER: the folder that keeps everything")
			}
			if options.HeartbeatLimit <= 0 {
				return cli.Usagef("--heartbeat-limit must be greater than 0")
			}
			for _, text := range *issuers {
				issuer, err := readIssuer(text)
				if err != nil {
					return err
				}
				options.Issuers = append(options.Issuers, issuer)
			}
			log, err := logger(w.stderr, *format)
			if err != nil {
				return err
			}
			options.Log = log
			return serve(ctx, *listen, options, w)
		},
	}
}

// repeated defines a flag that may be given many times.
func repeated(set *flag.FlagSet, name, help string) *[]string {
	var values []string
	set.Func(name, help, func(value string) error {
		values = append(values, value)
		return nil
	})
	return &values
}

// maxJWKS limits a file of keys in bytes.
const maxJWKS = 1 << 20

// readIssuer reads an issuer of the form URL=JWKS_FILE. The URL of an issuer has
// no query (OpenID Connect Discovery), so no equals sign either.
func readIssuer(text string) (server.Issuer, error) {
	url, path, found := strings.Cut(text, "=")
	if !found || url == "" || path == "" {
		return server.Issuer{}, cli.Usagef("--oidc-issuer must be URL=JWKS_FILE: the issuer as its tokens name it, and a file with what its jwks_uri shows")
	}
	file, err := os.Open(path)
	if err != nil {
		return server.Issuer{}, fmt.Errorf("read the keys of %s: %w", url, err)
	}
	defer file.Close()
	keys, err := io.ReadAll(io.LimitReader(file, maxJWKS+1))
	if err != nil {
		return server.Issuer{}, fmt.Errorf("read the keys of %s: %w", url, err)
	}
	if len(keys) > maxJWKS {
		return server.Issuer{}, fmt.Errorf("read the keys of %s: %s is larger than %d KiB, so it is no JWKS document", url, path, maxJWKS>>10)
	}
	return server.Issuer{URL: url, Keys: keys}, nil
}

func logger(sink io.Writer, format string) (*slog.Logger, error) {
	switch format {
	case "text":
		return slog.New(tint.NewTextHandler(sink, &tint.Options{TimeFormat: "2006-01-02T15:04:05.000Z07:00", NoColor: true})), nil
	case "json":
		return slog.New(slog.NewJSONHandler(sink, nil)), nil
	}
	return nil, cli.Usagef("--log-format must be text or json, not %q", format)
}

// serve runs the service until ctx ends: the listener, and the duties that time
// alone makes due. Whichever ends first ends the other.
func serve(ctx context.Context, address string, options server.Options, w world) (err error) {
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
		Handler: service.Handler(), ReadHeaderTimeout: headerLimit, ReadTimeout: readLimit, WriteTimeout: writeLimit, IdleTimeout: idleLimit,
		ErrorLog: slog.NewLogLogger(options.Log.Handler(), slog.LevelDebug),
	}
	fmt.Fprintf(w.stdout, "listening on http://%s (the access token is in %s)\n", listener.Addr(), filepath.Join(options.Folder, server.AccessTokenFile))

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
		farewell, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeLimit)
		defer cancel()
		if err := web.Shutdown(farewell); err != nil {
			return errors.Join(fmt.Errorf("wait for calls under way: %w", err), web.Close())
		}
		return nil
	})
	return all.Wait()
}
