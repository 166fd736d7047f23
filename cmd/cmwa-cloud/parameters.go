package main

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

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
	fallback string   // default
	variable variable // without a name if no variable sets it
	hidden   bool     // the value is secret, so there is no flag
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
			name: listenFlag, takes: text("HOST:PORT"), fallback: "127.0.0.1:8585",
			variable: variable{name: "PORT", check: checkPort},
			help:     "address of the service; port 0 chooses a free one",
		},
		{
			name: objectsFlag, takes: text("DIRECTORY"),
			variable: variable{name: "PULUMI_LOCAL_OBJECTS", check: checkPath},
			help:     "directory of the states of stacks; otherwise objects in --data",
		},
		{
			name: masterKeyFlag, takes: command.File, variable: variable{name: "PULUMI_LOCAL_KEYS", check: checkPath},
			help: "file with the 32 bytes of the master key, or its directory; otherwise master.key in --data, " +
				"which is made at the first start",
		},
		{
			name: publicFlag, takes: command.URL, variable: variable{name: "PULUMI_API_DOMAIN", check: checkDomain},
			help: "URL of the service for jobs and people; otherwise the URL at which they call it",
		},
		{
			name: "console-url", takes: command.URL,
			variable: variable{name: "PULUMI_CONSOLE_DOMAIN", check: checkDomain},
			help:     "URL of the web page in links; otherwise that of the service",
		},
		{
			name: certificateFlag, takes: command.File, variable: variable{name: "API_TLS_CERTIFICATE"},
			help: "file with the certificates for HTTPS as PEM, that of the service first; read again when it changes",
		},
		{
			name: keyFlag, takes: command.File, variable: variable{name: "API_TLS_PRIVATE_KEY", secret: true},
			help: "file with the private key of the certificate as PEM; read again when it changes",
		},
		{
			name: "tls-min-version", takes: command.OneOf("1.2", "1.3"), fallback: "1.2",
			variable: variable{name: "API_MIN_TLS_VERSION", check: oneOf("1.2", "1.3")}, help: "lowest version of TLS",
		},
		{name: "metrics-secret", hidden: true, variable: variable{name: "METRICS_WEBHOOK_SECRET", secret: true}},
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
			variable: variable{name: "PULUMI_DEPLOY_DEFAULT_IMAGE_REFERENCE", check: checkImage},
			help:     "container image of jobs without one of their own",
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
		if p.variable.name != "" {
			help += "; also " + p.variable.name
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
		case env.get(p.variable.name) != "":
			s.value, s.origin = secret.New(env.get(p.variable.name)), p.variable.name
			if value, found := derived[p.name]; found {
				s.value = secret.New(value)
			}
			s.masked = p.hidden || isPEM(env.get(p.variable.name))
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
	settings    []setting
	notices     []string // about environment variables, for the log
	listen      string
	certificate *certificate // nil for plain HTTP
	minTLS      uint16
	options     server.Options
}

// service reads the environment, checks the settings, and reads the files that they name.
func (f *serveFlags) service(s stdio) (service, error) {
	env, notices, err := readEnvironment(variableNames(), s.environ)
	if err != nil {
		return service{}, err
	}
	v, get := service{settings: f.choose(env), notices: notices}, map[string]string{}
	for _, one := range v.settings {
		get[one.name] = one.value.Reveal()
	}
	v.listen, v.minTLS = get[listenFlag], tlsVersion(get["tls-min-version"])
	v.options = server.Options{
		Directory: get[dataFlag], Objects: get[objectsFlag], MasterKey: get[masterKeyFlag], Version: cli.Version(),
		Log:       newLogger(s.stderr, get["log-format"]),
		PublicURL: get[publicFlag], ConsoleURL: get["console-url"], DefaultImage: get["default-image"],
		Organization: get["organization"], MetricsSecret: secret.New(get["metrics-secret"]),
	}
	if v.options.Directory == "" {
		return v, cli.Usagef("serve needs --data DIRECTORY: the directory of all data")
	}
	if v.options.MasterKey != "" {
		if _, err := keys.OpenLocal(v.options.MasterKey); err != nil {
			return v, cli.Usagef("--%s or PULUMI_LOCAL_KEYS: %w", masterKeyFlag, err)
		}
	}
	for name, duration := range map[string]*time.Duration{
		"heartbeat-limit": &v.options.HeartbeatLimit, "lease-duration": &v.options.LeaseDuration,
		"lease-stop-time": &v.options.LeaseStop,
	} {
		if *duration, err = positive("--"+name, get[name]); err != nil {
			return v, err
		}
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

	switch chain, key := get[certificateFlag], secret.New(get[keyFlag]); {
	case chain == "" && key.Empty():
		return v, nil
	case chain == "" || key.Empty():
		return v, cli.Usagef("--%s and --%s need each other: set both, or neither for plain HTTP",
			certificateFlag, keyFlag)
	default:
		if v.certificate, err = openCertificate(chain, key, v.options.Log); err != nil {
			err = cli.Usage(fmt.Errorf("read the certificate and its key: %w", err))
		}
		return v, err
	}
}
