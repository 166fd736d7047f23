package main

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"

	"github.com/cmwa-project/cmwa/cloud/server"
	"github.com/cmwa-project/cmwa/cloud/server/keys"
	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/cmd/cli/command"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// parameter is a setting of serve with one value. A flag sets it, or else an environment variable of Pulumi's
// self-hosted service.
type parameter struct {
	name     string // of the flag, without dashes
	takes    command.Values
	help     string
	fallback string // default
	variable string // empty if no variable sets it
	hidden   bool   // the value is secret, so there is no flag
}

// Names of parameters that are used more than once.
const (
	dataFlag        = "data"
	listenFlag      = "listen"
	objectsFlag     = "objects"
	masterKeyFlag   = "master-key"
	publicFlag      = "public-url"
	certificateFlag = "tls-certificate"
	keyFlag         = "tls-key"
)

// parameters returns the settings of serve with one value.
func parameters() []parameter {
	text, retention := command.Text, defaultRetention()
	return []parameter{
		{name: dataFlag, takes: text("DIRECTORY"), help: "directory of all data (required); made if it does not exist"},
		{
			name: listenFlag, takes: text("HOST:PORT"), fallback: "127.0.0.1:8585", variable: "PORT",
			help: "address of the service; port 0 chooses a free one",
		},
		{
			name: objectsFlag, takes: text("DIRECTORY"), variable: "PULUMI_LOCAL_OBJECTS",
			help: "directory of the states of stacks; otherwise objects in --data",
		},
		{
			name: masterKeyFlag, takes: command.File, variable: "PULUMI_LOCAL_KEYS",
			help: "file with the 32 bytes of the master key, or its directory; otherwise master.key in --data, " +
				"which is made at the first start",
		},
		{
			name: publicFlag, takes: command.URL, variable: "PULUMI_API_DOMAIN",
			help: "URL of the service for jobs and people; otherwise the URL at which they call it",
		},
		{name: "console-url", takes: command.URL, variable: "PULUMI_CONSOLE_DOMAIN",
			help: "URL of the web page in links; otherwise that of the service"},
		{
			name: certificateFlag, takes: command.File, variable: "API_TLS_CERTIFICATE",
			help: "file with the certificates for HTTPS as PEM, that of the service first; read again when it changes",
		},
		{
			name: keyFlag, takes: command.File, variable: "API_TLS_PRIVATE_KEY",
			help: "file with the private key of the certificate as PEM; read again when it changes",
		},
		{
			name: "tls-min-version", takes: command.OneOf("1.2", "1.3"), fallback: "1.2",
			variable: "API_MIN_TLS_VERSION", help: "lowest version of TLS",
		},
		{name: "metrics-secret", hidden: true, variable: "METRICS_WEBHOOK_SECRET"},
		{name: "log-format", takes: command.OneOf("text", "json"), help: "format of the log", fallback: "text"},
		{
			name: "heartbeat-limit", takes: text("DURATION"), fallback: "10m",
			help: "a claimed job fails after this time without a heartbeat",
		},
		{
			name: "lease-duration", takes: text("DURATION"), fallback: "1m",
			help: "a scan or policy evaluation is leased for this time, and its agent renews the lease",
		},
		{
			name: "lease-stop-time", takes: text("DURATION"), fallback: "70s",
			help: "started work is leased again this long after its lease has expired, so that its runner can stop",
		},
		{
			name: "default-image", takes: command.Image, fallback: "pulumi/pulumi",
			variable: "PULUMI_DEPLOY_DEFAULT_IMAGE_REFERENCE", help: "container image of jobs that name none",
		},
		{
			name: "organization", takes: command.Name, fallback: "organization",
			help: "organization to make at the first start",
		},
		{
			name: "max-log-bytes", takes: text("SIZE"), fallback: retention.logBytes,
			help: "bytes stored of the log of one step: its beginning and its end; 0 for all",
		},
		{
			name: "keep-deployments", takes: text("NUMBER"), fallback: retention.deployments,
			help: "deployments to keep of each stack; 0 for all",
		},
		{
			name: "keep-age", takes: text("DURATION"), fallback: retention.age,
			help: "how long to keep ended deployments, such as 90d; 0 for ever",
		},
		{
			name: "min-free-disk", takes: text("SIZE"), fallback: retention.freeDisk,
			help: "with less space, logs are not stored and new work is refused; 0 for no limit",
		},
	}
}

// serveFlags are the flags of serve and config.
type serveFlags struct {
	values  map[string]*string // by the name of the parameter; empty if the flag is not given
	issuers []string
}

func newServeFlags() *serveFlags {
	f := &serveFlags{values: map[string]*string{}}
	for _, p := range parameters() {
		f.values[p.name] = new(string)
	}
	return f
}

func (f *serveFlags) options() (all []command.Option) {
	for _, p := range parameters() {
		if p.hidden {
			continue
		}
		help := p.help
		if p.fallback != "" {
			help += " (default " + p.fallback + ")"
		}
		if p.variable != "" {
			help += "; also " + p.variable
		}
		all = append(all, command.String(f.values[p.name], p.name, p.takes, help))
	}
	return append(all, command.Repeated(&f.issuers, "oidc-issuer",
		command.Text("URL=JWKS_FILE[,CLAIM=PATTERN]...[,pool=POOL|,token=KIND]"),
		"OIDC issuer whose tokens agents may exchange for pool tokens, or users for an access token of the KIND "+
			"member or admin (of the organization) or user:NAME; a token must have every claim, such as "+
			"'sub=repo:acme/*'; the file is read at the start"))
}

// setting is the value of a parameter, and its origin: a flag, a variable, or "default".
type setting struct {
	name   string
	value  secret.String
	origin string
	masked bool // the value must not be printed
}

// choose returns the settings in the order of parameters. A flag overrides a variable.
func (f *serveFlags) choose(env environment) (all []setting) {
	derived := map[string]string{ // values of variables that have another form than the flag
		listenFlag:    ":" + env.get("PORT"),
		publicFlag:    f.scheme(env, env.get("PULUMI_API_DOMAIN")) + env.get("PULUMI_API_DOMAIN"),
		"console-url": f.scheme(env, env.get("PULUMI_CONSOLE_DOMAIN")) + env.get("PULUMI_CONSOLE_DOMAIN"),
	}
	for _, p := range parameters() {
		s := setting{p.name, secret.New(p.fallback), "default", p.hidden}
		switch flag := *f.values[p.name]; {
		case flag != "":
			s.value, s.origin = secret.New(flag), "--"+p.name
		case p.variable != "" && env.get(p.variable) != "":
			s.value, s.origin = secret.New(env.get(p.variable)), p.variable
			if value, found := derived[p.name]; found {
				s.value = secret.New(value)
			}
			s.masked = p.hidden || isPEM(env.get(p.variable))
		}
		all = append(all, s)
	}
	return all
}

// scheme returns the scheme of links to a domain. A domain that others reach has HTTPS: the service itself, or a
// balancer in front of it.
func (f *serveFlags) scheme(env environment, domain string) string {
	host, _, err := net.SplitHostPort(domain)
	if err != nil {
		host = strings.Trim(domain, "[]")
	}
	address, err := netip.ParseAddr(host)
	local := host == "localhost" || err == nil && address.IsLoopback()
	if local && env.get("API_TLS_CERTIFICATE") == "" && *f.values[certificateFlag] == "" {
		return "http://"
	}
	return "https://"
}

// service is what serve needs.
type service struct {
	listen      string
	certificate *certificate // nil for plain HTTP
	minTLS      uint16
	options     server.Options
}

// service checks the settings, and reads the files that they name.
func (f *serveFlags) service(env environment, s stdio) (service, error) {
	get := map[string]string{}
	for _, one := range f.choose(env) {
		get[one.name] = one.value.Reveal()
	}
	v := service{listen: get[listenFlag], minTLS: tlsVersion(get["tls-min-version"])}
	v.options = server.Options{
		Directory: get[dataFlag], Objects: get[objectsFlag], Version: cli.Version(),
		Log:       newLogger(s.stderr, get["log-format"]),
		PublicURL: get[publicFlag], ConsoleURL: get["console-url"], DefaultImage: get["default-image"],
		Organization: get["organization"], MetricsSecret: secret.New(get["metrics-secret"]),
	}
	if v.options.Directory == "" {
		return v, cli.Usagef("serve needs --data DIRECTORY: the directory of all data")
	}
	var err error
	if v.options.MasterKey = get[masterKeyFlag]; v.options.MasterKey != "" {
		if _, err := keys.OpenLocal(v.options.MasterKey); err != nil {
			return v, cli.Usagef("--%s or PULUMI_LOCAL_KEYS: %w", masterKeyFlag, err)
		}
	}
	if v.options.HeartbeatLimit, err = positive("--heartbeat-limit", get["heartbeat-limit"]); err != nil {
		return v, err
	}
	if v.options.LeaseDuration, err = positive("--lease-duration", get["lease-duration"]); err != nil {
		return v, err
	}
	if v.options.LeaseStop, err = positive("--lease-stop-time", get["lease-stop-time"]); err != nil {
		return v, err
	}
	retention := retentionFlags{get["max-log-bytes"], get["keep-deployments"], get["keep-age"], get["min-free-disk"]}
	if v.options.Retention, err = retention.parse(); err != nil {
		return v, err
	}
	for _, text := range f.issuers {
		issuer, err := readIssuer(text)
		if err != nil {
			return v, err
		}
		v.options.Issuers = append(v.options.Issuers, issuer)
	}
	v.certificate, err = f.openCertificate(get[certificateFlag], secret.New(get[keyFlag]), v.options.Log)
	return v, err
}

// openCertificate returns nil without a certificate.
func (f *serveFlags) openCertificate(chain string, key secret.String, log *slog.Logger) (*certificate, error) {
	switch {
	case chain == "" && key.Empty():
		return nil, nil
	case chain == "" || key.Empty():
		return nil, cli.Usagef("--%s and --%s need each other: set both, or none for plain HTTP",
			certificateFlag, keyFlag)
	}
	c, err := openCertificate(chain, key, log)
	if err != nil {
		return nil, cli.Usage(fmt.Errorf("read the certificate and its key: %w", err))
	}
	return c, nil
}
