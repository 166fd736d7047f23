package main

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cmwa-project/cmwa/cmd/cli"
)

func TestReloadUnknownKeys(t *testing.T) {
	t.Parallel()

	t.Run("with a misspelt service_url no token is sent", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, "process")
		v, p := w.countPolls(), w.pools(1)
		var outside atomic.Int64 // connections for requests to a service that is not on this machine
		proxy := httptest.NewUnstartedServer(http.NotFoundHandler())
		proxy.Config.ConnState = func(_ net.Conn, state http.ConnState) {
			if state == http.StateNew {
				outside.Add(1)
			}
		}
		proxy.Start()
		defer proxy.Close()
		content := w.content("token: "+p[0].token, "max_concurrent_workflows: 2")
		agent := w.followText([]string{"HTTPS_PROXY=" + proxy.URL, "https_proxy="}, content)
		w.hold("held", p[0].id)

		w.replace(w.file(), strings.Replace(content, "service_url:", "servce_url:", 1))
		agent.waitForMatch(regexp.MustCompile(`configuration rejected.*servce_url: ` +
			`unknown key: did you mean .*service_url`))
		w.waitPoll(v, p[0].token)
		w.waitPoll(v, p[0].token)
		for _, never := range []string{"drain pool", "start pool default service", "api.pulumi.com", "generation=2"} {
			if strings.Contains(agent.output(), never) {
				t.Errorf("the log contains %q:\n%s", never, agent.output())
			}
		}
		if n := outside.Load(); n > 0 {
			t.Errorf("the agent tried %d connections to other machines, want none", n)
		}

		w.replace(w.file(), content)
		agent.waitFor("configuration file is valid again, no change")
		w.release("held")
	})

	t.Run("a misspelt limit changes no limit", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, "process")
		p := w.pools(1)
		content := w.content("token: "+p[0].token, "max_concurrent_workflows: 2")
		agent := w.followText(nil, content)
		w.replace(w.file(), strings.Replace(content, "max_concurrent_workflows:", "max_concurent_workflows:", 1))
		agent.waitFor("configuration rejected")
		w.hold("first", p[0].id)
		w.hold("second", p[0].id) // runs at the same time as the first
		w.release("second")
		w.release("first")
	})

	t.Run("an unknown key that resembles no key is ignored unless strict is set", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, "process")
		v, p := w.countPolls(), w.pools(2)
		agent := w.follow(nil, "token: "+p[0].token)
		w.save("token: "+p[1].token, "owner: platform")
		agent.waitForMatch(regexp.MustCompile(`WRN .*owner: unknown key`))
		w.waitPoll(v, p[1].token)
		w.save("token: "+p[0].token, "owner: platform", "strict: true")
		agent.waitForMatch(regexp.MustCompile(`configuration rejected.*owner: unknown key`))
		w.wantNoPolls(v, p[0].token, p[1].token)
		w.save("token: "+p[0].token, "strict: true")
		w.waitPoll(v, p[0].token)
	})
}

func TestRunUnknownKeys(t *testing.T) {
	t.Parallel()
	t.Run("the variable of strict overrides the file", func(t *testing.T) {
		for strict, want := range map[bool]int{true: cli.ExitUsage, false: cli.ExitOK} {
			file := fileOf(t, "agent.yaml",
				fmt.Sprintf("token: pul-x\ndeploy_target: process\nowner: platform\nstrict: %t\n", !strict))
			got := cmwa([]string{fmt.Sprint("PULUMI_AGENT_STRICT=", strict)}, "run", "--dry-run", "--config", file)
			if got.code != want || !strings.Contains(got.stderr, "unknown key") {
				t.Errorf("%t: %+v", strict, got)
			}
		}
	})

	t.Run("the program exits with 2 and names line and hint", func(t *testing.T) {
		w := newWorld(t, "process")
		agent := w.agent("token: "+w.pool, "servce_url: "+w.url)
		agent.exit(cli.ExitUsage)
		agent.waitFor(w.directory + "/agent.yaml:2:1: servce_url: unknown key\n  hint: did you mean \"service_url\"?\n")
	})
}
