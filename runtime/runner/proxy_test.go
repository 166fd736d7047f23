package runner

import (
	"net/http"
	"testing"
)

func TestProxyOf(t *testing.T) {
	environ := []string{"https_proxy=http://image:1", "NO_PROXY=local.example.com", "OTHER=x"}
	const api = "https://api.example.com"
	for name, c := range map[string]struct {
		forward map[string]string
		url     string
		want    string
	}{
		"proxy of the environment":       {nil, api, "http://image:1"},
		"forwarded variable overrides":   {map[string]string{"HTTPS_PROXY": "http://agent:2"}, api, "http://agent:2"},
		"lower-case name":                {map[string]string{"https_proxy": "http://agent:2"}, api, "http://agent:2"},
		"host without a proxy":           {nil, "https://local.example.com", ""},
		"forwarded host without a proxy": {map[string]string{"NO_PROXY": "api.example.com"}, api, ""},
		"scheme without a proxy":         {nil, "http://api.example.com", ""},
		"forwarded proxy for http": {
			map[string]string{"HTTP_PROXY": "http://agent:3"}, "http://api.example.com", "http://agent:3",
		},
	} {
		request, err := http.NewRequest(http.MethodGet, c.url, nil)
		if err != nil {
			t.Fatal(err)
		}
		got, err := proxyOf(c.forward, environ)(request)
		if err != nil || (got == nil) != (c.want == "") || got != nil && got.String() != c.want {
			t.Errorf("%s: got %v, %v; want %q", name, got, err, c.want)
		}
	}
}
