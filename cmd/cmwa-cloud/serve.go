package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
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
	"golang.org/x/sync/errgroup"

	"github.com/cmwa-project/cmwa/cloud/server"
	"github.com/cmwa-project/cmwa/cloud/server/idtoken"
	"github.com/cmwa-project/cmwa/cloud/server/objects"
	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/cmd/cli/command"
	"github.com/cmwa-project/cmwa/schema/printable"
)

// Limits of the HTTP server. A client has readTimeout for the state of a stack, which may have 50 MiB: 90 kB/s. Idle
// connections of balancers live for 2 minutes. Pulumi documents the time for active calls when a service ends.
const (
	headerTimeout   = 10 * time.Second
	readTimeout     = 10 * time.Minute
	writeTimeout    = readTimeout + 2*time.Minute // counts from the end of the header
	idleTimeout     = 5 * time.Minute
	shutdownTimeout = 120 * time.Second
	maxHeader       = 32 << 10 // bytes
)

func serveCommand(s stdio) command.Command {
	flags := newServeFlags()
	return command.Command{
		Name: "serve", Help: "run the service until SIGTERM or SIGINT", Daemon: true,
		Long: "Environment variables of Pulumi's self-hosted service are accepted. Flags override them. See " +
			"cmwa-cloud config for the settings that result.",
		Forms: []command.Form{{command.AnyOf(flags.options()...)}},
		Run: func(ctx context.Context, _ []string) error {
			v, err := flags.service(s)
			if err != nil {
				return err
			}
			for _, notice := range v.notices {
				v.options.Log.Warn(notice, "component", "environment")
			}
			return v.serve(ctx, s)
		},
	}
}

// variableNames returns the names of all variables of this process.
func variableNames() (names []string) {
	for _, entry := range os.Environ() {
		name, _, _ := strings.Cut(entry, "=")
		names = append(names, name)
	}
	return names
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
func (v service) serve(ctx context.Context, s stdio) (err error) {
	if v.options.Objects != "" {
		bucket, err := objects.Open(v.options.Objects)
		if err == nil {
			err = objects.Probe(ctx, bucket)
		}
		if err != nil {
			return cli.Usagef("--%s or PULUMI_LOCAL_OBJECTS: %w", objectsFlag, err)
		}
	}
	service, err := server.Open(ctx, v.options)
	switch {
	case errors.Is(err, server.ErrMasterKey):
		return cli.Usage(err)
	case err != nil:
		return err
	}
	defer func() { err = errors.Join(err, service.Close()) }()
	listener, err := net.Listen("tcp", v.listen)
	if err != nil {
		return fmt.Errorf("listen: %w: choose another address with --listen", err)
	}
	web := &http.Server{
		Handler: service.Handler(), ReadHeaderTimeout: headerTimeout, ReadTimeout: readTimeout,
		WriteTimeout: writeTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
		ErrorLog: slog.NewLogLogger(v.options.Log.Handler(), slog.LevelDebug),
	}
	scheme, answer := "http", web.Serve
	if v.certificate != nil {
		web.TLSConfig = &tls.Config{GetCertificate: v.certificate.get, MinVersion: v.minTLS}
		scheme, answer = "https", func(l net.Listener) error { return web.ServeTLS(l, "", "") }
	}
	address := scheme + "://" + listenAddress(v.listen, listener.Addr())
	fmt.Fprintf(s.stdout, "listening on %s\n", address)
	token := printable.ShellArgument(filepath.Join(v.options.Directory, server.AccessTokenFile))
	fmt.Fprintf(s.stdout, "log in with: PULUMI_ACCESS_TOKEN=$(cat %s) pulumi login %s\n", token,
		cmp.Or(v.options.PublicURL, address))

	all, ctx := errgroup.WithContext(ctx)
	all.Go(func() error { return service.Run(ctx) })
	all.Go(func() error {
		if err := answer(listener); !errors.Is(err, http.ErrServerClosed) {
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
