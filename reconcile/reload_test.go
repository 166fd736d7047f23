package reconcile_test

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/cmwa-project/cmwa/reconcile"
	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/runtimetest"
	"github.com/cmwa-project/cmwa/schema"
)

// canary is part of every secret of these tests, and of no log line.
const canary = "c4n4ry"

// reloadTest is a Reloader with its configuration file, the files that this file names, and
// the delivered desired states.
type reloadTest struct {
	testing.TB
	reloader *reconcile.Reloader

	mu      sync.Mutex
	file    string
	path    string            // path of the file
	before  []string          // earlier search paths, without a file
	id      schema.FileID     // id of the file; zero is unknown
	findErr error             // error of reading the file
	named   map[string]string // content of the files that the file names; "denied" cannot be read
	wants   []reconcile.Desired
	watched []string // paths of the last call of Watch
	written bool     // whether the watcher reports a write of the file
	rewrote string   // a named file whose write the watcher reports
	frozen  string   // a file that is mounted by itself
	log     strings.Builder
}

func newReloadTest(t testing.TB) *reloadTest {
	d := &reloadTest{TB: t, path: "agent.yaml", named: map[string]string{}}
	d.reloader = reconcile.NewReloader(reconcile.ReloaderParts{
		Find: d.find,
		Watch: func(paths ...string) {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.watched = paths
		},
		Written: func(path string) bool { return d.written || path == d.rewrote },
		Frozen:  func(path string) bool { return path == d.frozen && path != "" },
		Log: slog.New(slog.NewTextHandler(&d.log, &slog.HandlerOptions{
			ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
				if a.Key == slog.TimeKey {
					return slog.Attr{}
				}
				return a
			}})),
	})
	d.reloader.Deliver(func(desired reconcile.Desired) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.wants = append(d.wants, desired)
	})
	return d
}

func (d *reloadTest) find() (schema.Source, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.findErr != nil {
		return schema.Source{}, d.findErr
	}
	named := maps.Clone(d.named)
	return schema.Source{Path: d.path, Before: d.before, FileID: d.id, Content: []byte(d.file),
		Executable: "/opt/cmwa/cmwa", Release: schema.Release{Targets: []string{"docker", "kubernetes", "process"}},
		ReadFile: func(name string) ([]byte, error) {
			content, there := named[name]
			switch {
			case !there:
				return nil, fs.ErrNotExist
			case content == "denied":
				return nil, fs.ErrPermission
			}
			return []byte(content), nil
		}}, nil
}

// takeLog returns the log since the last call.
func (d *reloadTest) takeLog() string {
	text := d.log.String()
	d.log.Reset()
	return text
}

// editCase is an edit with its expected effects.
type editCase struct {
	name       string
	edit       func(*reloadTest)
	generation uint64   // in force afterwards; a new one must have been delivered
	rejected   string   // part of the reason of the rejection; empty if the file is accepted
	logged     []string // parts of all new lines of the log
}

// write writes the file in place, or creates it with an inode that may have been used before.
func write(content string) func(*reloadTest) {
	return func(d *reloadTest) { d.file, d.findErr = content, nil }
}

// fail makes reads of the file fail.
func fail(err error) func(*reloadTest) { return func(d *reloadTest) { d.findErr = err } }

// put writes a file that the configuration names.
func put(name, content string) func(*reloadTest) {
	return func(d *reloadTest) { d.named[name] = content }
}

// remove removes a file that the configuration names.
func remove(name string) func(*reloadTest) {
	return func(d *reloadTest) { delete(d.named, name) }
}

// edits makes the edits one by one, and reloads three times after each.
func (d *reloadTest) edits(cases []editCase) {
	d.Helper()
	for _, p := range cases {
		p.edit(d)
		wants, before := len(d.wants), d.reloader.State()
		deliver := p.generation != before.Generation
		err := d.reloader.Reload()
		view := d.reloader.State()
		if view.Generation != p.generation {
			d.Fatalf("%s: generation %d, want %d", p.name, view.Generation, p.generation)
		}
		if delivered := len(d.wants) > wants; delivered != deliver {
			d.Fatalf("%s: a desired state was delivered: %v, want %v", p.name, delivered, deliver)
		}
		if deliver {
			if got := d.wants[len(d.wants)-1]; got.Generation != p.generation || got.Digest != view.Config.Digest ||
				len(d.wants) != wants+1 {
				d.Fatalf("%s: delivered generation %d with digest %s, %d times; want %d, %s", p.name, got.Generation,
					got.Digest, len(d.wants)-wants, p.generation, view.Config.Digest)
			}
		}
		why := ""
		if r := view.Rejection; r != nil {
			why = r.Reason
			for _, problem := range r.Problems {
				why += problem.String()
			}
		}
		if (why == "") != (p.rejected == "") || !strings.Contains(why, p.rejected) {
			d.Fatalf("%s: the rejection is %q, want %q", p.name, why, p.rejected)
		}
		if p.logged != nil && err == nil && p.rejected != "" {
			d.Fatalf("%s: the file is rejected, but Reload returned no error", p.name)
		}
		text := d.takeLog()
		if strings.Contains(text, canary) {
			d.Fatalf("%s: the log shows a secret:\n%s", p.name, text)
		}
		if strings.Contains(text, `\n`) {
			d.Fatalf("%s: a value of the log has several lines:\n%s", p.name, text)
		}
		lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
		if text == "" {
			lines = nil
		}
		if len(lines) != len(p.logged) {
			d.Fatalf("%s: the log is\n%s\nwant %d lines", p.name, text, len(p.logged))
		}
		for i, part := range p.logged {
			if !strings.Contains(lines[i], part) {
				d.Fatalf("%s: the log is\n%s\nwant in line %d\n%s", p.name, text, i+1, part)
			}
		}
		for range 2 {
			_ = d.reloader.Reload()
		}
		if again := d.reloader.State(); d.log.Len() > 0 || again.Rejected > before.Rejected+1 ||
			again.Generation != p.generation || len(d.wants) > wants+1 {
			d.Fatalf("%s: another reload of the same file has an effect: %+v\n%s", p.name, again, d.takeLog())
		}
	}
}

// withReloader runs story as a subtest, in a synctest bubble.
func withReloader(t *testing.T, name string, story func(d *reloadTest)) {
	t.Run(name, func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { story(newReloadTest(t)) }) // fails if a goroutine is left
	})
}

const (
	fileA = "token: pul-" + canary + "\n"
	fileB = "token: pul-" + canary + "\npolling_interval: 7s\ndocker: {memory: 1g}\nhttp_server_port: 9999\n"
	wrong = "token: pul-" + canary + "\npolling_interval: pul-" + canary + "\n"
)

func TestReload(t *testing.T) {
	four := func(line string) []string { return slices.Repeat([]string{line}, 4) }
	withReloader(t, "edits in sequence", func(d *reloadTest) {
		const rejected = `msg="configuration rejected: previous generation stays in force" ` +
			`component=config generation=`
		const reloaded = `msg="configuration reloaded" component=config generation=`
		const valid = `msg="configuration file is valid again, no change" component=config generation=`
		denied := fail(errors.New("not allowed"))
		d.edits([]editCase{
			{"file A", write(fileA), 1, "", nil},
			{"a file with a mistake", write(wrong), 1, "polling_interval",
				[]string{rejected + `1 problem="agent.yaml:2:19: polling_interval: `}},
			{"file B", write(fileB), 2, "", []string{
				reloaded + `2 health_threshold="2m -> 1m" effect=live`,
				reloaded + `2 http_server_port="8080 -> 9999" effect=rebind`,
				reloaded + `2 pool=default polling_interval="1m -> 7s" effect=live`,
				reloaded + `2 pool=default docker.memory="(unset) -> 1g" effect="next job"`}},
			{"file A again", write(fileA), 3, "", four("generation=3")},
			{"a file that is not YAML", write("token: [" + canary), 3, "agent.yaml", []string{rejected + "3"}},
			{"file A after the file that is not YAML", write(fileA), 3, "", []string{valid + "3"}},
			{"an empty file, perhaps incomplete", write(""), 3, "", nil},
			{"white space, perhaps incomplete", write(" \n\n"), 3, "", nil},
			{"file A after white space", write(fileA), 3, "", nil},
			{"no file, with another error than fs.ErrNotExist", fail(errors.New("there is no such file")), 3,
				"there is no such file", []string{rejected + `3 problem="there is no such file"`}},
			{"a file that must not be read", denied, 3, "not allowed", []string{rejected + `3 problem="not allowed"`}},
			{"file A after it could not be read", write(fileA), 3, "", []string{valid + "3"}},
			{"no file, perhaps being replaced", fail(fs.ErrNotExist), 3, "", nil},
			{"no file for longer than a rewrite takes",
				passed, 3, "restore it", []string{"restore it"}},
			{"file A after it was missing", write(fileA), 3, "", []string{valid + "3"}},
			{"an empty file before a read error", write(""), 3, "", nil},
			{"a read error after an empty file", denied, 3, "not allowed",
				[]string{rejected + `3 problem="not allowed"`}},
			{"file A after the read error", write(fileA), 3, "", []string{valid + "3"}},
			{"an empty file, an hour later", func(d *reloadTest) { time.Sleep(time.Hour); d.file = "" }, 3, "", nil},
			{"file A directly after the empty file", write(fileA), 3, "", nil},
			{"a read error again", denied, 3, "not allowed", []string{rejected + `3 problem="not allowed"`}},
			{"file B after the read error", write(fileB), 4, "", four("generation=4")},
			{"two mistakes", write(fileA + "log_level: " + canary + "\nmax_concurrent_workflows: -1\n"), 4,
				"max_concurrent_workflows", []string{rejected + "4", rejected + "4"}},
			{"another mistake", write(wrong), 4, "polling_interval", []string{rejected + "4"}},
			{"a target that this release does not have", write(fileA + "deploy_target: ecs\n"), 4,
				"ecs is not in this release", []string{rejected +
					`4 problem="agent.yaml:2:16: deploy_target: ecs is not in this release; ` +
					`it has docker, kubernetes and process"`}},
			{"file A with another log level", write(fileA + "log_level: debug\n"), 5, "",
				[]string{`log_level="info -> debug"`, "effect=rebind", "pool=default polling_interval=",
					`effect="next job"`}},
			{"an added comment", func(d *reloadTest) { d.file += "# why\n" }, 6, "",
				[]string{`no setting changed: only comments`}},
		})
		view := d.reloader.State()
		if view.Accepted != 6 || view.Rejected != 10 {
			d.Errorf("%d accepted and %d rejected, want 6 and 10", view.Accepted, view.Rejected)
		}
	})

	for key, c := range map[string]struct {
		config   string
		one, two string
		missing  string // error if the named file is missing; empty if that is no error
		of       func(reconcile.Desired) string
		effect   string
	}{
		"token_file": {"token_file: named\n", "pul-" + canary + "1\n", "pul-" + canary + "2", "no such file",
			func(d reconcile.Desired) string { return only(d).Tuning.Token.Reveal() },
			`pool=default token_file="named (changed)" effect=live`},
		"oidc_token_file": {"oidc_token_file: named\norganization_name: acme\nrunner_pool_id: p\n",
			"eyJ" + canary + "1", "eyJ" + canary + "2", "",
			func(d reconcile.Desired) string { return only(d).Tuning.OIDCSum },
			`pool=default oidc_token_file="named (changed)" effect=live`},
		"pod_template_file": {fileA + "deploy_target: kubernetes\npod_template_file: named\n",
			"spec: {priority: 1}\n", "spec: {priority: 2}\n", "no such file",
			nil, `pool=default pod_template_file="named (changed)" effect="next job"`},
		"ca_file": {fileA + "ca_file: named\n", certificate(t), certificate(t), "no such file",
			func(d reconcile.Desired) string { return only(d).Tuning.CA },
			`pool=default ca_file="named (changed)" effect=`},
	} {
		withReloader(t, "changed file that the key "+key+" names", func(d *reloadTest) {
			d.file = c.config
			d.edits([]editCase{{"the first content", put("named", c.one), 1, "", nil}})
			if want := []string{"agent.yaml", "named"}; !slices.Equal(d.watched, want) {
				d.Errorf("watched paths: got %v, want %v", d.watched, want)
			}
			generation := uint64(2)
			d.edits([]editCase{{"the second content", put("named", c.two), generation, "", []string{c.effect}}})
			if last := d.wants[1]; c.of != nil && (c.of(last) == "" || c.of(last) == c.of(d.wants[0])) {
				d.Error("the new content was not delivered")
			}
			if c.missing != "" {
				d.edits([]editCase{
					{"missing", remove("named"), generation, c.missing, []string{"rejected"}},
					{"unreadable", put("named", "denied"), generation, "cannot read the file",
						[]string{"cannot read the file"}},
					{"the second content again", put("named", c.two), generation, "",
						[]string{"valid again, no change"}},
					{"missing again", remove("named"), generation, c.missing, []string{"rejected"}},
				})
				if !slices.Contains(d.watched, "named") {
					d.Error("a missing file is not watched, so its creation cannot be detected")
				}
			} else {
				generation++
				d.edits([]editCase{{"missing", remove("named"), generation, "", []string{c.effect}}})
			}
			generation++
			d.edits([]editCase{{"the first content again", put("named", c.one), generation, "", []string{c.effect}}})
			if last := d.wants[len(d.wants)-1]; c.of != nil && c.of(last) != c.of(d.wants[0]) {
				d.Error("the old content was not delivered")
			}
		})
	}

	for name, c := range map[string]struct {
		edit func(*reloadTest)
		want string
	}{
		"has a mistake": {write(wrong), "polling_interval"},
		"is empty":      {write(""), "there is no pool access token"},
		"is missing":    {fail(errors.New("there is no such file")), "there is no such file"},
		"has a target that this release does not have": {
			write(fileA + "deploy_target: ecs\n"), "ecs is not in this release"},
		"names a missing file": {write("token_file: named\n"), "token_file"},
	} {
		withReloader(t, "first file is rejected if it "+name, func(d *reloadTest) {
			c.edit(d)
			err := d.reloader.Reload()
			if err == nil || !strings.Contains(err.Error(), c.want) {
				d.Errorf("the error is %v, want %q in it", err, c.want)
			}
			if view := d.reloader.State(); view.Config != nil || view.Generation != 0 || view.Rejected != 1 ||
				len(d.wants) > 0 {
				d.Errorf("a configuration is in force: %+v", view)
			}
			if text := d.takeLog(); text != "" { // the caller reports the error
				d.Errorf("the log is\n%s", text)
			}
			if again := d.reloader.Reload(); again == nil || again.Error() != err.Error() {
				d.Errorf("the next reload of the same file returned %v", again)
			}
			d.wantReload("the mistake is fixed", write(fileA+"# corrected\n"), 1)
		})
	}

	withReloader(t, "files of a rejected configuration are watched", func(d *reloadTest) {
		d.edits([]editCase{
			{"file A", write(fileA), 1, "", nil},
			{"a file that names three missing files", write(
				"pools: [{name: a, token_file: one}, {name: b, token_file: two, ca_file: three}]\n"), 1,
				"no such file", []string{"", "", ""}},
		})
		if want := []string{"agent.yaml", "one", "three", "two"}; !slices.Equal(d.watched, want) {
			d.Errorf("watched paths: got %v, want %v", d.watched, want)
		}
		d.edits([]editCase{
			{"the first named file is created", put("one", "pul-"+canary+"1"), 1, "no such file", []string{"", ""}},
			{"the second named file is created", put("two", "pul-"+canary+"2"), 1, "no such file", []string{""}},
			{"the third named file is created, without a certificate", put("three", "no certificate "+canary), 1,
				"no certificate", []string{"no certificate"}},
			{"a file that names the first two files", write(
				"pools: [{name: a, token_file: one}, {name: b, token_file: two}]\n"), 2, "",
				[]string{`pool="a, b" change=started`, "pool=default change=drained"}},
		})
	})

	withReloader(t, "file at another search path", func(d *reloadTest) {
		at := func(path, content string, before ...string) func(*reloadTest) {
			return func(d *reloadTest) { d.path, d.file, d.before = path, content, before }
		}
		later := func(path, content string, before ...string) func(*reloadTest) {
			return func(d *reloadTest) { at(path, content, before...)(d); passed(d) }
		}
		d.edits([]editCase{
			{"a file at the third of three paths", at("/etc/a", fileA, "here/a", "home/a"), 1, "", nil},
			{"a file at the second path", at("home/a", fileB, "here/a"), 2, "",
				[]string{"generation=2 file=home/a", "generation=2", "generation=2", "generation=2"}},
			{"a file at the first path", at("here/a", fileA), 3, "",
				[]string{"generation=3 file=here/a", "generation=3", "generation=3", "generation=3"}},
			{"the file at the first path is missing, or being replaced", at("home/a", fileB, "here/a"), 3, "", nil},
			{"the file at the first path is restored", at("here/a", fileA), 3, "", nil},
			{"the file at the first path is missing again", at("home/a", fileB, "here/a"), 3, "", nil},
			{"the file at the first path stays missing", later("home/a", fileB, "here/a"), 4, "", four("generation=4")},
			{"the file at the second path is missing too", at("/etc/a", fileA, "here/a", "home/a"), 4, "", nil},
			{"the file at the second path stays missing", later("/etc/a", fileA, "here/a", "home/a"), 5, "",
				[]string{"generation=5 file=/etc/a", "generation=5", "generation=5", "generation=5"}},
			{"there is no file at any path", at("", "", "here/a", "home/a", "/etc/a"), 5, "", nil},
			{"there is still no file at any path", later("", "", "here/a", "home/a", "/etc/a"), 5, "restore it",
				[]string{"restore it"}},
			{"a file with the content in force, at the second path", at("home/a", fileA, "here/a"), 5, "",
				[]string{"valid again, no change"}},
		})
		if path := d.reloader.State().Config.Path; path != "home/a" {
			d.Errorf("the path in force is %s, want home/a", path)
		}
		if want := []string{"here/a", "home/a"}; !slices.Equal(d.watched, want) {
			d.Errorf("watched paths: got %v, want %v", d.watched, want)
		}
	})

	withReloader(t, "warning is logged once", func(d *reloadTest) {
		d.file = "oidc_token_file: o\norganization_name: acme\nrunner_pool_id: p\n" + fileA
		for range 3 {
			if err := d.reloader.Reload(); err != nil {
				d.Fatal(err)
			}
		}
		text := d.takeLog()
		if strings.Count(text, "level=WARN") != 1 || !strings.Contains(text,
			"has no effect with oidc_token_file") || strings.Contains(text, canary) {
			d.Errorf("the log is\n%s", text)
		}
		d.edits([]editCase{
			{"another edit", write(d.file + "syslog: false\n"), 2, "", []string{"generation=2"}},
			{"an unknown key", write(d.file + "owner: platform\n"), 3, "",
				[]string{"owner: unknown key", "generation=3"}},
		})
		if warnings := d.reloader.State().Warnings; len(warnings) != 2 {
			d.Errorf("the warnings are %v, want 2", warnings)
		}
	})

	const before = `
pools:
  - {name: moved, token: pul-c4n4ry1}
  - {name: gone, token: pul-c4n4ry2}
  - {name: kept, token: pul-c4n4ry3}
`
	const after = `
http_server_port: 9999
pools:
  - {name: moved, token: pul-c4n4ry1, service_url: "https://pulumi.example.com"}
  - {name: new, token: pul-c4n4ry4}
  - {name: kept, token: pul-c4n4ry5, docker: {memory: 1g, user: app}}
`
	withReloader(t, "log contains each change", func(d *reloadTest) {
		d.edits([]editCase{
			{"before", write(before), 1, "", nil},
			{"after", write(after), 2, "", []string{
				`level=INFO msg="configuration reloaded" component=config generation=2 ` +
					`http_server_port="8080 -> 9999" effect=rebind`,
				`generation=2 pool=gone change=drained`,
				`generation=2 pool=kept token="[secret] (changed)" effect=live`,
				`generation=2 pool=kept docker.memory="(unset) -> 1g" docker.user="(unset) -> app" ` +
					`effect="next job"`,
				`generation=2 pool=moved change=replaced ` +
					`service_url="https://api.pulumi.com -> https://pulumi.example.com" effect=drain`,
				`generation=2 pool=new change=started`}},
		})
	})

	t.Run("concurrent calls", func(t *testing.T) {
		d := newReloadTest(t)
		contents := []string{fileA, wrong, fileB, "", fileA + "log_level: debug\n"}
		var workers sync.WaitGroup
		for worker := range 8 {
			workers.Go(func() {
				for i := range 10 {
					d.mu.Lock()
					d.file = contents[(worker+i)%len(contents)]
					d.mu.Unlock()
					_ = d.reloader.Reload()
					if view := d.reloader.State(); view.Config != nil && view.Generation == 0 {
						t.Error("a configuration is in force without a generation")
					}
				}
			})
		}
		workers.Wait()
		d.file = fileB + "# the last\n"
		if err := d.reloader.Reload(); err != nil {
			t.Fatal(err)
		}
		for i, desired := range d.wants { // no generation is missing, repeated or out of order
			if desired.Generation != uint64(i)+1 {
				t.Fatalf("delivery %d is generation %d", i+1, desired.Generation)
			}
			if i > 0 && desired.Digest == d.wants[i-1].Digest {
				t.Errorf("generations %d and %d are the same", i, i+1)
			}
		}
		if last := d.wants[len(d.wants)-1]; last.Process.HTTPPort != 9999 ||
			last.Digest != d.reloader.State().Config.Digest {
			t.Error("the last file is not the last desired state")
		}
		if strings.Contains(d.takeLog(), canary) {
			t.Error("the log shows a secret")
		}
	})
}

func only(d reconcile.Desired) runtime.PoolSpec {
	for _, spec := range d.Pools {
		return spec
	}
	return runtime.PoolSpec{}
}

// certificate returns the certificate of a new authority.
func certificate(t *testing.T) string {
	_, authority := runtimetest.ServeTLS(t, "127.0.0.1", http.NotFoundHandler())
	return authority
}

// TestReloadProperty checks after random edits that the last delivered desired state is the
// one that a new Reloader delivers for the last valid file.
func TestReloadProperty(t *testing.T) {
	line := rapid.SampledFrom([]string{"polling_interval: 7s\n", "log_level: debug\n", "docker: {memory: 1g}\n",
		"token_file: named\n", "token: pul-c4n4ry\n",
		"polling_interval: c4n4ry\n", "unknown: c4n4ry\n", "- c4n4ry\n", "\n", "# c4n4ry\n",
		"pools: [{name: a}, {name: b}]\n", "max_concurrent_workflows: 3\n"})
	rapid.Check(t, func(rt *rapid.T) {
		d := newReloadTest(t)
		var good func(*reloadTest) // restores the files of the last delivery
		for range rapid.IntRange(1, 7).Draw(rt, "edits") {
			switch rapid.IntRange(0, 4).Draw(rt, "kind") {
			case 0:
				d.named["named"] = rapid.SampledFrom([]string{"pul-c4n4ry1", "pul-c4n4ry2", "", "denied"}).Draw(rt,
					"named")
			case 1:
				delete(d.named, "named")
			case 2:
				d.findErr = errors.New("missing")
			default:
				d.findErr = nil
				d.file = strings.Join(rapid.SliceOfN(line, 0, 4).Draw(rt, "file"), "")
			}
			wants, before := len(d.wants), d.reloader.State()
			err := d.reloader.Reload()
			after := d.reloader.State()
			if text := d.takeLog(); strings.Contains(text, canary) || err != nil &&
				strings.Contains(err.Error(), canary) {
				rt.Fatalf("the log or the error contains a secret: %v\n%s", err, text)
			}
			switch {
			case len(d.wants) > wants:
				file, named := d.file, maps.Clone(d.named)
				good = func(other *reloadTest) { other.file, other.named = file, named }
				if err != nil || after.Rejection != nil {
					rt.Fatalf("a file was delivered and also rejected: %v", err)
				}
			case after.Config != before.Config || after.Generation != before.Generation:
				rt.Fatal("another configuration is in force, but was not delivered")
			}
		}
		if good == nil {
			return
		}
		fresh := newReloadTest(t)
		good(fresh)
		if err := fresh.reloader.Reload(); err != nil {
			rt.Fatalf("a new Reloader returned for the last valid file: %v", err)
		}
		got, want := d.wants[len(d.wants)-1], fresh.wants[0]
		generation := got.Generation
		want.Generation = generation
		for key, spec := range want.Pools {
			spec.Generation = generation
			want.Pools[key] = spec
		}
		if !reflect.DeepEqual(got, want) {
			rt.Fatalf("the last delivery is\n%s\nwant\n%s", fmt.Sprint(got), fmt.Sprint(want))
		}
	})
}

func TestReloadRestart(t *testing.T) {
	d := newReloadTest(t)
	for i, step := range []struct{ file, want string }{
		{"state_directory: /a\n", ""}, {"state_directory: /b\n", "state_directory"},
		{"state_directory: /b\npolling_interval: 20s\n", "state_directory"}, {"state_directory: /a\n", ""},
	} {
		d.file = "token: pul-a\ndeploy_target: process\n" + step.file
		if err := d.reloader.Reload(); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(d.reloader.State().Restart, " "); got != step.want {
			t.Errorf("step %d: a restart is needed for %q, want %q", i, got, step.want)
		}
	}
}
