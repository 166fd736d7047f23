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

// desk is a reloader and everything around it: a file, the files that it names,
// and what was made of them.
type desk struct {
	reloader *reconcile.Reloader

	mu      sync.Mutex
	file    string
	path    string            // of the file
	before  []string          // files that would be read in its place, and are not there
	id      schema.FileID     // of the file; zero is unknown
	gone    error             // of reading the file
	beside  map[string]string // files that the file names; one that is "denied" must not be read
	wants   []reconcile.Desired
	watched []string // at last
	written bool     // what the watcher reports of the file
	log     strings.Builder
}

func newDesk() *desk {
	d := &desk{path: "agent.yaml", beside: map[string]string{}}
	d.reloader = reconcile.NewReloader(reconcile.ReloaderParts{
		Find: d.find,
		Watch: func(paths ...string) {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.watched = paths
		},
		Written: func(string) bool { return d.written },
		Log: slog.New(slog.NewTextHandler(&d.log, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
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

func (d *desk) find() (schema.Source, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.gone != nil {
		return schema.Source{}, d.gone
	}
	beside := maps.Clone(d.beside)
	return schema.Source{Path: d.path, Before: d.before, FileID: d.id, Content: []byte(d.file), Executable: "/opt/cmwa/cmwa", Release: schema.Release{Targets: []string{"docker", "kubernetes", "process"}},
		ReadFile: func(name string) ([]byte, error) {
			content, there := beside[name]
			switch {
			case !there:
				return nil, fs.ErrNotExist
			case content == "denied":
				return nil, fs.ErrPermission
			}
			return []byte(content), nil
		}}, nil
}

// heard takes what was logged since the last time.
func (d *desk) heard() string {
	text := d.log.String()
	d.log.Reset()
	return text
}

// phase is an edit, and what must follow from it.
type phase struct {
	what       string
	edit       func(*desk)
	generation uint64   // in force afterwards
	wanted     bool     // the loop was told
	refused    string   // part of why; empty is not refused
	logged     []string // parts, each on a line of its own; no others come
}

func (*desk) write(content string) func(*desk) {
	return func(d *desk) { d.file, d.gone = content, nil }
}
func (*desk) lay(name, content string) func(*desk) {
	return func(d *desk) { d.beside[name] = content }
}
func (*desk) take(name string) func(*desk) { return func(d *desk) { delete(d.beside, name) } }

// goThrough lives the phases one by one, and looks twice at each.
func (d *desk) goThrough(t *testing.T, phases []phase) {
	t.Helper()
	for _, p := range phases {
		p.edit(d)
		wants, rejected := len(d.wants), d.reloader.View().Rejected
		err := d.reloader.Reload()
		view := d.reloader.View()
		if view.Generation != p.generation {
			t.Fatalf("%s: generation %d, want %d", p.what, view.Generation, p.generation)
		}
		if wanted := len(d.wants) > wants; wanted != p.wanted {
			t.Fatalf("%s: the loop was told: %v, want %v", p.what, wanted, p.wanted)
		}
		if p.wanted {
			if got := d.wants[len(d.wants)-1]; got.Generation != p.generation || got.Digest != view.Config.Digest || len(d.wants) != wants+1 {
				t.Fatalf("%s: told generation %d with digest %s in %d turns; the view is %d, %s", p.what, got.Generation, got.Digest, len(d.wants)-wants, p.generation, view.Config.Digest)
			}
		}
		why := ""
		if r := view.Rejection; r != nil {
			why = r.Reason
			for _, problem := range r.Problems {
				why += problem.String()
			}
		}
		if (why == "") != (p.refused == "") || !strings.Contains(why, p.refused) {
			t.Fatalf("%s: refused because of %q, want %q", p.what, why, p.refused)
		}
		if p.logged != nil && err == nil && p.refused != "" {
			t.Fatalf("%s: refused without an error", p.what)
		}
		text := d.heard()
		if strings.Contains(text, canary) {
			t.Fatalf("%s: the log shows a secret:\n%s", p.what, text)
		}
		if strings.Contains(text, `\n`) {
			t.Fatalf("%s: a value of the log has several lines:\n%s", p.what, text)
		}
		lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
		if text == "" {
			lines = nil
		}
		if len(lines) != len(p.logged) {
			t.Fatalf("%s: the log says\n%s\nwant %d lines", p.what, text, len(p.logged))
		}
		for i, part := range p.logged {
			if !strings.Contains(lines[i], part) {
				t.Fatalf("%s: the log says\n%s\nwant in line %d\n%s", p.what, text, i+1, part)
			}
		}
		for range 2 {
			_ = d.reloader.Reload()
		}
		if again := d.reloader.View(); d.log.Len() > 0 || again.Rejected > rejected+1 || again.Generation != p.generation || len(d.wants) > wants+1 {
			t.Fatalf("%s: another look at the same adds something: %+v\n%s", p.what, again, d.heard())
		}
	}
}

func inBubble(t *testing.T, story func(t *testing.T, d *desk)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { story(t, newDesk()) }) // which fails if a goroutine is left
}

const (
	fileA = "token: pul-" + canary + "\n"
	fileB = "token: pul-" + canary + "\npolling_interval: 7s\ndocker: {memory: 1g}\nhttp_server_port: 9999\n"
	wrong = "token: pul-" + canary + "\npolling_interval: pul-" + canary + "\n"
)

func TestEditsOneAfterTheOther(t *testing.T) {
	inBubble(t, func(t *testing.T, d *desk) {
		const stays = `msg="configuration refused: the one before stays in force" component=config generation=`
		const undone = `msg="configuration is again the one in force" component=config generation=`
		d.goThrough(t, []phase{
			{"a good file", d.write(fileA), 1, true, "", nil},
			{"a bad one", d.write(wrong), 1, false, "polling_interval", []string{stays + `1 problem="agent.yaml:2:19: polling_interval: `}},
			{"another good one", d.write(fileB), 2, true, "", []string{
				`msg="configuration changed" component=config generation=2 now="http_server_port, health_threshold, default: polling_interval" next_job="default: docker.memory"`}},
			{"the first again", d.write(fileA), 3, true, "", []string{"generation=3"}},
			{"no YAML", d.write("token: [" + canary), 3, false, "agent.yaml", []string{stays + "3"}},
			{"the first again after that", d.write(fileA), 3, false, "", []string{undone + "3"}},
			{"nothing, in mid-air", d.write(""), 3, false, "", nil},
			{"blanks, in mid-air", d.write(" \n\n"), 3, false, "", nil},
			{"the first after that", d.write(fileA), 3, false, "", nil},
			{"no file", func(d *desk) { d.gone = errors.New("there is no such file") }, 3, false, "there is no such file", []string{stays + `3 problem="there is no such file"`}},
			{"a file that must not be read", func(d *desk) { d.gone = errors.New("not allowed") }, 3, false, "not allowed", []string{stays + `3 problem="not allowed"`}},
			{"the first is back", d.write(fileA), 3, false, "", []string{undone + "3"}},
			{"no file, perhaps in mid-air", func(d *desk) { d.gone = fs.ErrNotExist }, 3, false, "", nil},
			{"no file for longer", func(d *desk) { time.Sleep(d.reloader.RecheckAfter()) }, 3, false, "restore it", []string{"restore it"}},
			{"the first is back again", d.write(fileA), 3, false, "", []string{undone + "3"}},
			{"nothing for a moment", d.write(""), 3, false, "", nil},
			{"not to be read", func(d *desk) { d.gone = errors.New("not allowed") }, 3, false, "not allowed", []string{stays + `3 problem="not allowed"`}},
			{"the first is back once more", d.write(fileA), 3, false, "", []string{undone + "3"}},
			{"nothing for a moment, an hour later", func(d *desk) { time.Sleep(time.Hour); d.file = "" }, 3, false, "", nil},
			{"the first is back at last", d.write(fileA), 3, false, "", nil},
			{"no file again", func(d *desk) { d.gone = errors.New("not allowed") }, 3, false, "not allowed", []string{stays + `3 problem="not allowed"`}},
			{"another in its place", d.write(fileB), 4, true, "", []string{"generation=4"}},
			{"two mistakes", d.write(fileA + "log_level: " + canary + "\nmax_concurrent_workflows: -1\n"), 4, false, "max_concurrent_workflows", []string{stays + "4", stays + "4"}},
			{"from bad to bad", d.write(wrong), 4, false, "polling_interval", []string{stays + "4"}},
			{"what this release cannot do", d.write(fileA + "deploy_target: ecs\n"), 4, false, "ecs is not in this release", []string{stays + `4 problem="agent.yaml:2:16: deploy_target: ecs is not in this release; it has docker, kubernetes and process"`}},
			{"something that it can", d.write(fileA + "log_level: debug\n"), 5, true, "", []string{`log_level, default: polling_interval" next_job="default: docker.memory"`}},
			{"a comment alone", func(d *desk) { d.file += "# why\n" }, 6, true, "", []string{`no setting in force: comments alone`}},
		})
		view := d.reloader.View()
		if view.Accepted != 6 || view.Rejected != 10 {
			t.Errorf("%d accepted and %d rejected, want 6 and 10", view.Accepted, view.Rejected)
		}
	})
}

func TestAFileBesideThatChangesIsAChange(t *testing.T) {
	for key, c := range map[string]struct {
		config   string
		one, two string
		missing  string // what is said when it is not there; empty is nothing
		of       func(reconcile.Desired) string
		effect   string
	}{
		"token_file": {"token_file: beside\n", "pul-" + canary + "1\n", "pul-" + canary + "2", "no such file",
			func(d reconcile.Desired) string { return only(d).Tuning.Token.Reveal() }, `now="default: token_file"`},
		"oidc_token_file": {"oidc_token_file: beside\norganization_name: acme\nrunner_pool_id: p\n", "eyJ" + canary + "1", "eyJ" + canary + "2", "",
			func(d reconcile.Desired) string { return only(d).Tuning.OIDCSum }, `now="default: oidc_token_file"`},
		"pod_template_file": {fileA + "deploy_target: kubernetes\npod_template_file: beside\n", "spec: {priority: 1}\n", "spec: {priority: 2}\n", "no such file",
			nil, `next_job="default: pod_template_file"`},
		"ca_file": {fileA + "ca_file: beside\n", certificate(t), certificate(t), "no such file",
			func(d reconcile.Desired) string { return only(d).Tuning.CA }, `="default: ca_file"`},
	} {
		t.Run(key, func(t *testing.T) {
			inBubble(t, func(t *testing.T, d *desk) {
				generation := uint64(1)
				d.goThrough(t, []phase{{"at first", func(d *desk) { d.file, d.beside["beside"] = c.config, c.one }, 1, true, "", nil}})
				if want := []string{"agent.yaml", "beside"}; !slices.Equal(d.watched, want) {
					t.Errorf("watched are %v, want %v", d.watched, want)
				}
				generation++
				d.goThrough(t, []phase{{"another content", d.lay("beside", c.two), generation, true, "", []string{c.effect}}})
				if last := d.wants[len(d.wants)-1]; c.of != nil && (c.of(last) == "" || c.of(last) == c.of(d.wants[0])) {
					t.Error("the loop is not told of the new content")
				}
				if c.missing != "" {
					d.goThrough(t, []phase{
						{"not there", d.take("beside"), generation, false, c.missing, []string{"refused"}},
						{"not to be read", d.lay("beside", "denied"), generation, false, "must not be read", []string{"must not be read"}},
						{"there again", d.lay("beside", c.two), generation, false, "", []string{"again the one in force"}},
						{"not there again", d.take("beside"), generation, false, c.missing, []string{"refused"}},
					})
					if !slices.Contains(d.watched, "beside") {
						t.Error("a file that is not there is not watched, so that its return goes unseen")
					}
				} else {
					generation++
					d.goThrough(t, []phase{{"not there", d.take("beside"), generation, true, "", []string{c.effect}}})
				}
				generation++
				d.goThrough(t, []phase{{"back with the first content", d.lay("beside", c.one), generation, true, "", []string{c.effect}}})
				if last := d.wants[len(d.wants)-1]; c.of != nil && c.of(last) != c.of(d.wants[0]) {
					t.Error("the loop is not told of the old content")
				}
			})
		})
	}
}

func only(d reconcile.Desired) runtime.PoolSpec {
	for _, spec := range d.Pools {
		return spec
	}
	return runtime.PoolSpec{}
}

// certificate is that of some authority, another each time.
func certificate(t *testing.T) string {
	_, authority := runtimetest.ServeTLS(t, "127.0.0.1", http.NotFoundHandler())
	return authority
}

func TestTheFirstLookDecidesWhetherAnAgentCanBegin(t *testing.T) {
	for name, c := range map[string]struct {
		edit func(*desk)
		says string
	}{
		"a mistake":                     {func(d *desk) { d.file = wrong }, "polling_interval"},
		"nothing":                       {func(d *desk) { d.file = "" }, "there is no pool access token"},
		"no file":                       {func(d *desk) { d.gone = errors.New("there is no such file") }, "there is no such file"},
		"what this release cannot do":   {func(d *desk) { d.file = fileA + "deploy_target: ecs\n" }, "ecs is not in this release"},
		"a file beside it is not there": {func(d *desk) { d.file = "token_file: beside\n" }, "token_file"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, d *desk) {
				c.edit(d)
				err := d.reloader.Reload()
				if err == nil || !strings.Contains(err.Error(), c.says) {
					t.Errorf("the error is %v, want %q in it", err, c.says)
				}
				if view := d.reloader.View(); view.Config != nil || view.Generation != 0 || view.Rejected != 1 || len(d.wants) > 0 {
					t.Errorf("something is in force: %+v", view)
				}
				if text := d.heard(); text != "" { // who began tells it
					t.Errorf("the log says\n%s", text)
				}
				if again := d.reloader.Reload(); again == nil || again.Error() != err.Error() {
					t.Errorf("the next look at the same says %v", again)
				}
				d.file, d.gone = fileA+"# corrected\n", nil
				if err := d.reloader.Reload(); err != nil || d.reloader.View().Generation != 1 || d.reloader.View().Rejection != nil {
					t.Errorf("after the mistake is mended: %v, %+v", err, d.reloader.View())
				}
			})
		})
	}
}

func TestTheFilesOfARefusedConfigurationAreWatchedToo(t *testing.T) {
	inBubble(t, func(t *testing.T, d *desk) {
		d.goThrough(t, []phase{
			{"a good file", d.write(fileA), 1, true, "", nil},
			{"one whose files are missing", d.write("pools: [{name: a, token_file: one}, {name: b, token_file: two, ca_file: three}]\n"), 1, false, "no such file", []string{"", "", ""}},
		})
		if want := []string{"agent.yaml", "one", "three", "two"}; !slices.Equal(d.watched, want) {
			t.Errorf("watched are %v, want %v", d.watched, want)
		}
		d.goThrough(t, []phase{
			{"the first comes", d.lay("one", "pul-"+canary+"1"), 1, false, "no such file", []string{"", ""}},
			{"the second comes", d.lay("two", "pul-"+canary+"2"), 1, false, "no such file", []string{""}},
			{"the last comes", d.lay("three", "no certificate "+canary), 1, false, "no certificate", []string{"no certificate"}},
			{"none is needed", d.write("pools: [{name: a, token_file: one}, {name: b, token_file: two}]\n"), 2, true, "", []string{`now="`}},
		})
	})
}

func TestTheFileThatCountsMayBeAnother(t *testing.T) {
	inBubble(t, func(t *testing.T, d *desk) {
		lies := func(path, content string, before ...string) func(*desk) {
			return func(d *desk) { d.path, d.file, d.before = path, content, before }
		}
		lie := func(path, content string, before ...string) func(*desk) {
			return func(d *desk) { lies(path, content, before...)(d); time.Sleep(d.reloader.RecheckAfter()) }
		}
		d.goThrough(t, []phase{
			{"the last of three places", lies("/etc/a", fileA, "here/a", "home/a"), 1, true, "", nil},
			{"the second", lies("home/a", fileB, "here/a"), 2, true, "", []string{"generation=2 file=home/a"}},
			{"the first", lies("here/a", fileA), 3, true, "", []string{"generation=3"}},
			{"it is gone, perhaps in mid-air", lies("home/a", fileB, "here/a"), 3, false, "", nil},
			{"it is back", lies("here/a", fileA), 3, false, "", nil},
			{"it is gone again", lies("home/a", fileB, "here/a"), 3, false, "", nil},
			{"it stays away", lie("home/a", fileB, "here/a"), 4, true, "", []string{"generation=4"}},
			{"the second is gone too", lies("/etc/a", fileA, "here/a", "home/a"), 4, false, "", nil},
			{"and stays away", lie("/etc/a", fileA, "here/a", "home/a"), 5, true, "", []string{"generation=5"}},
			{"all are gone", lies("", "", "here/a", "home/a", "/etc/a"), 5, false, "", nil},
			{"and stay away", lie("", "", "here/a", "home/a", "/etc/a"), 5, false, "restore it", []string{"restore it"}},
			{"one is back, in another place", lies("home/a", fileA, "here/a"), 5, false, "", []string{"again the one in force"}},
		})
		if path := d.reloader.View().Config.Path; path != "home/a" {
			t.Errorf("in force is %s, want home/a", path)
		}
		if want := []string{"here/a", "home/a"}; !slices.Equal(d.watched, want) {
			t.Errorf("watched are %v, want %v", d.watched, want)
		}
	})
}

func TestAWarningIsSaidOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, d *desk) {
		d.file = "oidc_token_file: o\norganization_name: acme\nrunner_pool_id: p\n" + fileA
		for range 3 {
			if err := d.reloader.Reload(); err != nil {
				t.Fatal(err)
			}
		}
		text := d.heard()
		if strings.Count(text, "level=WARN") != 1 || !strings.Contains(text, "has no effect beside oidc_token_file") || strings.Contains(text, canary) {
			t.Errorf("the log says\n%s", text)
		}
		d.goThrough(t, []phase{
			{"another edit", d.write(d.file + "syslog: false\n"), 2, true, "", []string{"generation=2"}},
			{"a slip", d.write(d.file + "owner: platform\n"), 3, true, "", []string{"owner: unknown key", "generation=3"}},
		})
		if warnings := d.reloader.View().Warnings; len(warnings) != 2 {
			t.Errorf("the view has the warnings %v", warnings)
		}
	})
}

func TestTheLineOfAReloadTellsAllThatChanges(t *testing.T) {
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
	inBubble(t, func(t *testing.T, d *desk) {
		d.goThrough(t, []phase{
			{"before", d.write(before), 1, true, "", nil},
			{"after", d.write(after), 2, true, "", []string{
				`level=INFO msg="configuration changed" component=config generation=2 now="http_server_port, gone: drained, kept: token, new: started" ` +
					`next_job="kept: docker.memory, kept: docker.user" drained_and_replaced=moved`}},
		})
	})
}

func TestManyMayLookAtOnce(t *testing.T) {
	d := newDesk()
	contents := []string{fileA, wrong, fileB, "", fileA + "log_level: debug\n"}
	var looking sync.WaitGroup
	for worker := range 8 {
		looking.Go(func() {
			for i := range 10 {
				d.mu.Lock()
				d.file = contents[(worker+i)%len(contents)]
				d.mu.Unlock()
				_ = d.reloader.Reload()
				if view := d.reloader.View(); view.Config != nil && view.Generation == 0 {
					t.Error("a configuration is in force without a generation")
				}
			}
		})
	}
	looking.Wait()
	d.file = fileB + "# the last\n"
	if err := d.reloader.Reload(); err != nil {
		t.Fatal(err)
	}
	for i, desired := range d.wants { // no generation is left out, doubled or told late
		if desired.Generation != uint64(i)+1 {
			t.Fatalf("wish %d is generation %d", i+1, desired.Generation)
		}
		if i > 0 && desired.Digest == d.wants[i-1].Digest {
			t.Errorf("generations %d and %d are the same", i, i+1)
		}
	}
	if last := d.wants[len(d.wants)-1]; last.Process.HTTPPort != 9999 || last.Digest != d.reloader.View().Config.Digest {
		t.Error("the last file is not what is wanted at last")
	}
	if strings.Contains(d.heard(), canary) {
		t.Error("the log shows a secret")
	}
}

// Whatever is written, the loop wants what the last good file says: what a fresh
// reloader that sees only that file would tell it.
func TestTheLastGoodFileIsWhatIsWanted(t *testing.T) {
	line := rapid.SampledFrom([]string{"polling_interval: 7s\n", "log_level: debug\n", "docker: {memory: 1g}\n", "token_file: beside\n", "token: pul-c4n4ry\n",
		"polling_interval: c4n4ry\n", "unknown: c4n4ry\n", "- c4n4ry\n", "\n", "# c4n4ry\n", "pools: [{name: a}, {name: b}]\n", "max_concurrent_workflows: 3\n"})
	rapid.Check(t, func(rt *rapid.T) {
		d := newDesk()
		var good func(*desk) // what lay there when the loop was told last
		for range rapid.IntRange(1, 7).Draw(rt, "edits") {
			switch rapid.IntRange(0, 4).Draw(rt, "kind") {
			case 0:
				d.beside["beside"] = rapid.SampledFrom([]string{"pul-c4n4ry1", "pul-c4n4ry2", "", "denied"}).Draw(rt, "beside")
			case 1:
				delete(d.beside, "beside")
			case 2:
				d.gone = errors.New("not there")
			default:
				d.gone = nil
				d.file = strings.Join(rapid.SliceOfN(line, 0, 4).Draw(rt, "file"), "")
			}
			wants, before := len(d.wants), d.reloader.View()
			err := d.reloader.Reload()
			after := d.reloader.View()
			if text := d.heard(); strings.Contains(text, canary) || err != nil && strings.Contains(err.Error(), canary) {
				rt.Fatalf("a secret is shown: %v\n%s", err, text)
			}
			switch {
			case len(d.wants) > wants:
				file, beside := d.file, maps.Clone(d.beside)
				good = func(other *desk) { other.file, other.beside = file, beside }
				if err != nil || after.Rejection != nil {
					rt.Fatalf("told the loop and refused: %v", err)
				}
			case after.Config != before.Config || after.Generation != before.Generation:
				rt.Fatal("something else is in force, and the loop was not told")
			}
		}
		if good == nil {
			return
		}
		fresh := newDesk()
		good(fresh)
		if err := fresh.reloader.Reload(); err != nil {
			rt.Fatalf("a fresh start with the last good file: %v", err)
		}
		here, there := d.wants[len(d.wants)-1], fresh.wants[0]
		generation := here.Generation
		there.Generation = generation
		for key, spec := range there.Pools {
			spec.Generation = generation
			there.Pools[key] = spec
		}
		if !reflect.DeepEqual(here, there) {
			rt.Fatalf("wanted is\n%s\nand by a fresh start\n%s", fmt.Sprint(here), fmt.Sprint(there))
		}
	})
}
