package main

import (
	"fmt"
	"net"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cmwa-project/cmwa/cmd/cli"
)

// dialled listens at an address of this machine. It counts each connection, and closes it.
func dialled(t *testing.T) (address string, count *atomic.Int64) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	count = &atomic.Int64{}
	var accepting sync.WaitGroup
	accepting.Go(func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			count.Add(1)
			_ = connection.Close()
		}
	})
	t.Cleanup(func() { _ = listener.Close(); accepting.Wait() })
	return listener.Addr().String(), count
}

func TestReloadUnknownKeys(t *testing.T) {
	t.Parallel()

	t.Run("with a misspelt service_url no token is sent", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, "process")
		v, p := w.countPolls(), w.pools(1)
		proxy, outside := dialled(t) // gets every request to a service that is not on this machine
		content := w.content("token: "+p[0].token, "max_concurrent_workflows: 2")
		agent := w.followText([]string{"HTTPS_PROXY=http://" + proxy, "https_proxy="}, content)
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
	for name, test := range map[string]struct {
		lines  []string
		env    []string
		starts bool
	}{
		"a misspelt key ends the start":             {[]string{"poling_interval: 1s"}, nil, false},
		"a misspelt nested key ends the start":      {[]string{"docker: {netwrk: a}"}, nil, false},
		"an unknown key does not end the start":     {[]string{"owner: platform"}, nil, true},
		"an unknown key ends the start with strict": {[]string{"owner: platform", "strict: true"}, nil, false},
		"an unknown key ends the start with the variable of strict": {
			[]string{"owner: platform"}, []string{"PULUMI_AGENT_STRICT=true"}, false,
		},
		"keys of real files never end the start": {
			[]string{"version: 2.3.0", "workflow_runners_embeddable: /opt/x", "strict: true"}, nil, true,
		},
		"the variable of strict overrides the file": {
			[]string{"owner: platform", "strict: true"}, []string{"PULUMI_AGENT_STRICT=false"}, true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			file := fileOf(t, "agent.yaml",
				"token: pul-x\ndeploy_target: process\n"+strings.Join(test.lines, "\n")+"\n")
			result := tell(test.env, "run", "--dry-run", "--config", file)
			want := cli.ExitUsage
			if test.starts {
				want = cli.ExitOK
			}
			known := strings.Contains(name, "real files")
			if result.code != want || strings.Contains(result.stderr, "unknown key") == known {
				t.Errorf("%+v", result)
			}
			if code, stdout, _ := commandLine(test.env, "vet", file); (code == cli.ExitOK) != known {
				t.Errorf("vet: exit code %d, %s", code, stdout)
			}
		})
	}

	t.Run("the program exits with 2 and names line and hint", func(t *testing.T) {
		w := newWorld(t, "process")
		agent := w.agent("token: "+w.pool, "servce_url: "+w.url)
		agent.exit(cli.ExitUsage)
		if want := fmt.Sprintf("%s:2:1: servce_url: unknown key\n  hint: did you mean \"service_url\"?\n", w.directory+
			"/agent.yaml"); !strings.Contains(agent.output(), want) {
			t.Errorf("there is no %q in\n%s", want, agent.output())
		}
	})
}
