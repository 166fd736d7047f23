package runner

import (
	"net/http"
	"net/url"
	"strings"

	"golang.org/x/net/http/httpproxy"
)

// proxyOf returns the proxy function for the requests of the runner. A forwarded variable
// overrides one of the environment, as it does in steps: if the service is only reachable
// through a proxy, env_forward_allowlist is enough for both.
func proxyOf(forward map[string]string, environ []string) func(*http.Request) (*url.URL, error) {
	variables := map[string]string{}
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		variables[name] = value
	}
	value := func(name string) string {
		for _, set := range []map[string]string{forward, variables} {
			for _, spelt := range []string{name, strings.ToLower(name)} {
				if value := set[spelt]; value != "" {
					return value
				}
			}
		}
		return ""
	}
	proxy := (&httpproxy.Config{
		HTTPProxy: value("HTTP_PROXY"), HTTPSProxy: value("HTTPS_PROXY"), NoProxy: value("NO_PROXY"),
	}).ProxyFunc()
	return func(r *http.Request) (*url.URL, error) { return proxy(r.URL) }
}
