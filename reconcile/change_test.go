package reconcile_test

import (
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/cmwa-project/cmwa/reconcile"
	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/schema"
)

type fataler interface {
	Helper()
	Fatalf(string, ...any)
}

// config loads a configuration. The test fails if the configuration has an error.
func config(t fataler, file string) *schema.Config {
	t.Helper()
	c, problems := schema.Load(schema.Source{Path: "agent.yaml", Content: []byte(file), Executable: "/opt/cmwa/cmwa",
		ReadFile: func(name string) ([]byte, error) {
			if name == "a" {
				return []byte("pul-a"), nil
			}
			return nil, fs.ErrNotExist
		}})
	if c == nil {
		t.Fatalf("%v\n%s", problems, file)
	}
	return c
}

// wantPreview checks the text of the preview of a change.
func wantPreview(t *testing.T, before, after *schema.Config, want string) {
	t.Helper()
	if diff := cmp.Diff(want, reconcile.Describe(reconcile.Preview(before, after))); diff != "" {
		t.Error(diff)
	}
}

func TestPreview(t *testing.T) {
	t.Run("effects of each pool and of the agent", func(t *testing.T) {
		before := config(t, `
log_level: info
http_server_port: 8080
polling_interval: 1m
pools:
  - {name: a, token: pul-a}
  - {name: b, token: pul-b}
  - {name: moved, token: pul-c, docker: {memory: 1g}}
  - {name: gone, token: pul-d}
  - {name: same, token: pul-e, polling_interval: 5s}
  - {name: retoken, token: pul-f, polling_interval: 5s}
`)
		after := config(t, `
log_level: debug
http_server_port: 9090
polling_interval: 30s
docker: {volumes: [cache:/cache]}
pools:
  - {name: new, token: pul-n}
  - {name: same, token: pul-e, polling_interval: 5s, docker: {volumes: []}}
  - {name: retoken, token: pul-g, polling_interval: 5s, docker: {volumes: []}}
  - {name: moved, token: pul-c, service_url: "https://pulumi.example.com", docker: {memory: 2g, volumes: []}}
  - {name: b, token: pul-b}
  - {name: a, token: pul-a}
`)
		wantPreview(t, before, after, `agent:
  live      health_threshold  2m -> 1m
  live      log_level         info -> debug
  rebind    http_server_port  8080 -> 9090
pools a, b: tuned, running jobs continue
  live      polling_interval  1m -> 30s
  next job  docker.volumes    [] -> [cache:/cache]
pool gone: drained and removed, running jobs finish first
pool moved: drained and replaced, running jobs finish first
  drain     service_url       https://api.pulumi.com -> https://pulumi.example.com
  drain     polling_interval  1m -> 30s
  drain     docker.memory     1g -> 2g
pool new: started
pool retoken: tuned, running jobs continue
  live      token  [secret] (changed)
`)
		wantPreview(t, after, after, "no change\n")
	})

	t.Run("key of another target has no effect", func(t *testing.T) {
		before := config(t, "token: pul-a\n")
		after := config(t, "token: pul-a\nkubernetes: {namespace: jobs}\n"+
			"pod_template: {spec: {priority: 3}}\necs: {cluster: c}\n")
		wantPreview(t, before, after, `pool default: kept, nothing in use changes
  none      kubernetes.namespace  (unset) -> jobs
  none      pod_template          (unset) -> {spec: {priority: 3}}
  none      ecs.cluster           (unset) -> c
`)
		for _, target := range []string{"kubernetes", "process"} {
			before := config(t, "token: pul-a\ndeploy_target: "+target+"\n")
			after := config(t, "token: pul-a\ndeploy_target: "+target+"\ndocker: {memory: 1g}\n")
			wantPreview(t, before, after,
				"pool default: kept, nothing in use changes\n  none      docker.memory  (unset) -> 1g\n")
		}
	})

	t.Run("limit of all pools", func(t *testing.T) {
		alone := config(t, "token: pul-a\n")
		named := config(t, "token: pul-a\npools: [{name: default}]\n")
		limited := config(t, "token: pul-a\nmax_concurrent_workflows: 1\npools: [{name: default}]\n")
		wantPreview(t, alone, named, "no change\n")
		wantPreview(t, named, limited, "agent:\n  live      max_concurrent_workflows  (unset) -> 1\n")
		wantPreview(t, limited, alone, "agent:\n  live      max_concurrent_workflows  1 -> (unset)\n")
	})

	// Each key of the schema has a reload class, such as live or drain. The loop must apply a
	// change of the key as its class states. Otherwise the output of cmwa plan would be wrong.
	t.Run("each key takes effect as the schema states", func(t *testing.T) {
		checked := 0
		for _, f := range schema.Fields() {
			if f.OnlyVariable || f.Old != "" || f.Unused != "" || f.Ignored || f.Default == "" || notYetRun(f.Key) ||
				f.Key == "token_file" || f.Key == "oidc_token_file" || f.Key == "ca_file" {
				continue
			}
			checked++
			file := another(f)
			mapping, _, nested := strings.Cut(f.Key, ".")
			if nested {
				file = mapping + ":\n  " + file
			}
			base, old := "token: pul-a\nrequest_retry_max_wait: 1h\n", ""
			switch f.Key {
			case "token":
				base, old = "", "token: pul-a\n"
			case "request_retry_max_wait":
				base = "token_file: a\n"
			}
			if mapping == "kubernetes" || f.Key == "pod_template" {
				base += "deploy_target: kubernetes\n"
			}
			before, after := config(t, base+old), config(t, base+file+"\n")
			was, now := reconcile.Want(before, 1), reconcile.Want(after, 2)
			observed := reconcile.Observed{Process: was.Process, Pools: map[string]runtime.PoolState{}}
			for key, spec := range was.Pools {
				observed.Pools[key] = runtime.PoolState{Spec: spec, Phase: runtime.PoolPolling, Ready: true}
			}
			plan := reconcile.Diff(now, observed)
			var got schema.Class
			for _, action := range plan {
				switch a := action.(type) {
				case reconcile.StartPool: // the old pool is drained when the new one runs
					got = schema.ReloadDrain
				case reconcile.TunePool:
					got = schema.ReloadLive
					if placed(was) != placed(now) {
						got = schema.ReloadJob
					}
				case reconcile.SetProcess:
					if got == "" {
						got = schema.ReloadLive
					}
					if a.From.HTTPPort != a.To.HTTPPort || a.From.HTTPAddress != a.To.HTTPAddress {
						got = schema.ReloadRebind
					}
				}
			}
			if len(plan) == 0 && f.Reload == schema.ReloadRestart { // nothing that runs changes
				got = schema.ReloadRestart
			}
			if f.Key == "strict" { // affects only how the file is read, so it is in force after the read
				got = schema.ReloadLive
			}
			if got != f.Reload {
				t.Errorf("%s has the effect %q, want %q as in the schema; the plan is %v", f.Key, got, f.Reload, plan)
			}
			reloads := reconcile.Preview(before, after)
			effect := reconcile.Effect(f.Reload.String())
			if nested && mapping != after.Pools[0].DeployTarget {
				effect = reconcile.NoEffect
			}
			if !slices.ContainsFunc(reloads, func(r reconcile.Reload) bool {
				return slices.ContainsFunc(r.Changes, func(c reconcile.Change) bool {
					return c.Key == f.Key && c.Effect == effect
				})
			}) {
				t.Errorf("%s is not in the preview with the effect %q: %v", f.Key, effect, reloads)
			}
		}
		if checked < 35 {
			t.Errorf("only %d keys were checked", checked)
		}
	})

	t.Run("the preview names the change of each pool", func(t *testing.T) {
		draw := func(t *rapid.T, label string) string {
			file := fmt.Sprintf("polling_interval: %ds\npools:\n", rapid.IntRange(1, 2).Draw(t, label))
			count := 0
			for _, name := range []string{"a", "b", "c"} {
				if rapid.Bool().Draw(t, name) || name == "c" && count == 0 {
					count++
					file += fmt.Sprintf(
						"- {name: %s, token: pul-%s%d, service_url: 'https://%d', docker: {memory: %dg}}\n", name, name,
						rapid.IntRange(1, 2).Draw(t, "token"), rapid.IntRange(1, 2).Draw(t, "service"),
						rapid.IntRange(1, 2).Draw(t, "memory"))
				}
			}
			return file
		}
		rapid.Check(t, func(t *rapid.T) {
			before, after := config(t, draw(t, "before")), config(t, draw(t, "after"))
			previewed := map[string]reconcile.PoolChange{}
			for _, r := range reconcile.Preview(before, after) {
				previewed[r.Pool] = r.PoolChange
				if r.PoolChange == reconcile.Tuned && len(r.Changes) == 0 {
					t.Fatalf("pool %s is tuned without a change", r.Pool)
				}
			}
			old, now := byName(reconcile.Want(before, 1)), byName(reconcile.Want(after, 2))
			for _, name := range []string{"a", "b", "c"} {
				was, is := old[name], now[name]
				want := reconcile.PoolChange("")
				switch {
				case was.Name == "" && is.Name == "":
				case was.Name == "":
					want = reconcile.Started
				case is.Name == "":
					want = reconcile.Drained
				case was.Identity != is.Identity:
					want = reconcile.Replaced
				case !cmp.Equal(was.Tuning, is.Tuning):
					want = reconcile.Tuned
				}
				if previewed[name] != want {
					t.Fatalf("pool %s: want %q, the preview is %q", name, want, previewed[name])
				}
			}
		})
	})
}

// notYetRun reports whether a change of a key alone has no effect on the desired state. The
// keys of ecs have no effect in this release. The value of pod_template_file is a path, and
// only the content of the file matters.
func notYetRun(key string) bool {
	return strings.HasPrefix(key, "ecs.") || strings.HasPrefix(key, "pod_template_file")
}

// placed returns the settings of a pool that apply only to jobs which start later.
func placed(d reconcile.Desired) string {
	for _, spec := range d.Pools {
		return fmt.Sprintf("%+v", spec.Tuning.Instance)
	}
	return ""
}

// another returns a line of YAML: the last part of a key, and a value other than its default.
func another(f schema.Field) string {
	key := f.Key[strings.LastIndexByte(f.Key, '.')+1:]
	value := "other"
	switch {
	case f.Key == "service_url":
		value = "https://pulumi.example.com"
	case f.Key == "shared_volume_directory", f.Key == "state_directory":
		value = "/other"
	case strings.HasPrefix(f.Key, "kubernetes.memory"), strings.HasPrefix(f.Key, "kubernetes.ephemeral_storage"):
		value = "1Gi"
	case f.Key == "docker.memory", f.Key == "docker.storage_limit":
		value = "1g"
	case f.Key == "docker.volumes":
		value = "[a:/a]"
	case f.Key == "docker.extra_hosts":
		value = "[a:b]"
	case f.Key == "docker.labels":
		value = "[a=b]"
	case f.Kind == schema.KindBool:
		value = map[string]string{"true": "false", "false": "true"}[f.Default]
	case f.Kind == schema.KindInt:
		value = "17"
	case f.Kind == schema.KindDuration:
		value = "17m"
	case f.Kind == schema.KindQuantity:
		value = "3"
	case f.Kind == schema.KindList && len(f.Choices) > 0:
		value = "[" + f.Choices[0] + "]"
	case f.Kind == schema.KindList:
		value = "[OTHER]"
	case len(f.Choices) > 0:
		value = f.Choices[len(f.Choices)-1]
	}
	return key + ": " + value
}

func byName(d reconcile.Desired) map[string]runtime.PoolSpec {
	pools := map[string]runtime.PoolSpec{}
	for _, spec := range d.Pools {
		pools[spec.Name] = spec
	}
	return pools
}

func TestWantKeepPods(t *testing.T) {
	c := config(t, `
deploy_target: kubernetes
pools:
  - {name: a, token: pul-a, kubernetes: {keep_failed_pods: true}}
  - {name: b, token: pul-b}
`)
	keep := func() map[string]string {
		kept := map[string]string{}
		for _, spec := range reconcile.Want(c, 1).Pools {
			kept[spec.Name] = spec.Tuning.Instance.Kubernetes.KeepPods
		}
		return kept
	}
	if diff := cmp.Diff(map[string]string{"a": "failed", "b": ""}, keep()); diff != "" {
		t.Error(diff)
	}
	c.DebugPod = true
	if diff := cmp.Diff(map[string]string{"a": "all", "b": "all"}, keep()); diff != "" {
		t.Error(diff)
	}
}
