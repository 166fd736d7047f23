package reconcile_test

import (
	"fmt"
	"io/fs"
	"strings"
	"testing"
	"time"
)

// renamed renames another file to the path of the file.
func renamed(content string) func(*reloadTest) {
	return func(d *reloadTest) { d.file, d.findErr, d.id.Device, d.id.Inode = content, nil, 1, d.id.Inode+1 }
}

// removed removes the file.
func removed(d *reloadTest) { d.findErr, d.file = fs.ErrNotExist, "" }

// reload makes an edit and reloads, as after an event of the watcher.
func (d *reloadTest) reload(edit func(*reloadTest)) {
	edit(d)
	_ = d.reloader.Reload()
}

// passed lets the time of RecheckAfter pass.
func passed(d *reloadTest) { time.Sleep(d.reloader.RecheckAfter()) }

// wantReload makes an edit, reloads, and checks which generation is in force.
func (d *reloadTest) wantReload(what string, edit func(*reloadTest), want uint64) {
	d.Helper()
	edit(d)
	if err := d.reloader.Reload(); err != nil {
		d.Fatalf("%s: Reload returned %v", what, err)
	}
	d.wantGeneration(what, want)
}

// settled is the configuration in force in these tests.
const settled = `token: pul-c4n4ry
service_url: https://pulumi.example.com
deploy_target: process
http_server_port: 9999
polling_interval: 7s
`

// wantGeneration checks which generation is in force.
func (d *reloadTest) wantGeneration(what string, want uint64) {
	d.Helper()
	if view := d.reloader.State(); view.Generation != want || view.Rejection != nil {
		d.Fatalf("%s: generation %d is in force, want %d; the rejection is %v", what, view.Generation, want,
			view.Rejection)
	}
}

// wantRecheck checks the time of the next reload that the Reloader needs, or 0.
func (d *reloadTest) wantRecheck(want time.Duration) {
	d.Helper()
	if again := d.reloader.RecheckAfter(); again != want {
		d.Errorf("RecheckAfter is %s, want %s", again, want)
	}
}

func TestReloader(t *testing.T) {
	const token = "token: pul-c4n4ry\n"
	begin := func(d *reloadTest) {
		d.Helper()
		d.wantReload("at first", renamed(settled), 1)
		d.wantRecheck(0)
		time.Sleep(time.Hour)
	}

	for name, content := range map[string]string{
		"service_url":     strings.Replace(settled, "example.com", "example.org", 1),
		"deploy_target":   strings.Replace(settled, "process", "docker", 1),
		"port":            strings.Replace(settled, "9999", "9998", 1),
		"token":           strings.Replace(settled, "c4n4ry", "c4n4ry2", 1),
		"token_file":      strings.Replace(settled, "token: pul-c4n4ry", "token_file: named", 1),
		"an added pool":   settled + "pools: [{name: default}, {name: more, token: pul-c4n4ry3}]\n",
		"a replaced pool": settled + "pools: [{name: more}]\n",
		"first line only": token,
	} {
		withReloader(t, "a change in place waits for a second without changes: "+name, func(d *reloadTest) {
			d.named["named"] = "pul-c4n4ry"
			begin(d)
			d.wantReload("at once", write(content), 1)
			d.wantRecheck(time.Second)
			time.Sleep(time.Second - time.Millisecond)
			d.reload(func(*reloadTest) {}) // without an edit
			d.wantGeneration("almost a second later", 1)
			d.wantReload("a second later", passed, 2)
			d.wantRecheck(0)
		})
	}

	withReloader(t, "a change in place that moves nothing is accepted at once", func(d *reloadTest) {
		begin(d)
		for i, more := range []string{
			"log_level: debug\n", "max_concurrent_workflows: 3\n", "docker: {memory: 1g}\n", "# why\n",
		} {
			d.wantReload(more, func(d *reloadTest) { d.file += more }, uint64(i)+2)
		}
	})

	withReloader(t, "a change that moves nothing waits for an earlier one that moves something", func(d *reloadTest) {
		begin(d)
		d.reload(write(token))
		time.Sleep(500 * time.Millisecond)
		d.wantReload("the other lines of the file", write(settled+"log_level: debug\n"), 1)
		d.wantReload("a second later", passed, 2)
		d.wantReload("a later change that moves nothing", write(settled), 3)
	})

	withReloader(t, "a file that is renamed into place is accepted at once", func(d *reloadTest) {
		begin(d)
		d.wantReload("a renamed file", renamed(token), 2)
		d.wantReload("a write in place after the rename", write(token+"http_server_port: 9998\n"), 2)
		d.wantReload("a rename while the write waits", renamed(token+"http_server_port: 9997\n"), 3)
	})

	withReloader(t, "a write in place waits after a rename that changed nothing", func(d *reloadTest) {
		begin(d)
		d.reload(renamed(settled))
		d.wantReload("the first line", write(token), 1)
		d.wantReload("a second later", passed, 2)
	})

	withReloader(t, "a file that is created in place of another file waits", func(d *reloadTest) {
		begin(d)
		d.written = true
		d.wantReload("the first line", renamed(token), 1)
		d.wantReload("a second later", passed, 2)
		d.written = false
		d.wantReload("a rename", renamed(settled), 3)
	})

	withReloader(t, "a token file that is written in place waits", func(d *reloadTest) {
		d.named["named"] = "pul-c4n4ry"
		d.reload(renamed("token_file: named\n"))
		time.Sleep(time.Hour)
		rewrite := func(token string) func(*reloadTest) {
			return func(d *reloadTest) { d.named["named"], d.rewrote = token, "named" }
		}
		d.wantReload("a part of the token", rewrite("pul-c4"), 1)
		time.Sleep(60 * time.Millisecond)
		d.wantReload("the whole token", rewrite("pul-c4n4ry2"), 1)
		d.rewrote = ""
		d.wantReload("a second later", passed, 2)
		if got := only(d.wants[len(d.wants)-1]).Tuning.Token.Reveal(); len(d.wants) != 2 || got != "pul-c4n4ry2" {
			d.Errorf("%d generations were delivered, the last with the token %q", len(d.wants), got)
		}
		d.wantReload("a token file that is renamed into place", put("named", "pul-c4n4ry3"), 3)
	})

	withReloader(t, "a file that is created at a path without a file waits", func(d *reloadTest) {
		begin(d)
		d.reload(removed)
		time.Sleep(60 * time.Millisecond)
		d.wantReload("the first line after a removal", write(token), 1)
		time.Sleep(60 * time.Millisecond)
		d.wantReload("the whole file", write(settled), 1)
		d.wantRecheck(0) // with the content in force
		d.reload(func(d *reloadTest) { d.path, d.file, d.id.Inode = "nearer/agent.yaml", token, 77 })
		d.wantGeneration("a file at an earlier search path", 1)
		d.wantReload("a second later", passed, 2)
	})

	withReloader(t, "a mistake is rejected a second later and its correction waits", func(d *reloadTest) {
		begin(d)
		d.wantReload("the first line of a file without a token", write("service_url: https://a.example\n"), 1)
		d.reload(write(settled + "log_level: 7\n"))
		d.wantGeneration("a mistake in the complete file", 1)
		d.reload(passed)
		if view := d.reloader.State(); view.Rejection == nil || view.Generation != 1 || view.Rejected != 1 {
			d.Fatalf("the mistake is not rejected: %+v", view)
		}
		d.reload(write(token))
		if view := d.reloader.State(); view.Generation != 1 {
			d.Fatalf("generation %d is in force before the file has settled", view.Generation)
		}
		d.wantReload("a second later", passed, 2)
	})

	// The writer pauses after each line for less than a second, and the watcher reports changes
	// at any time. No incomplete file may come into force.
	for _, pause := range []time.Duration{time.Millisecond, 80 * time.Millisecond, 999 * time.Millisecond} {
		for _, missing := range []bool{false, true} {
			name := fmt.Sprintf("no part of a file comes into force, a line every %s, missing first %v", pause, missing)
			withReloader(t, name, func(d *reloadTest) {
				begin(d)
				d.reload(func(d *reloadTest) { d.file = "" })
				if missing {
					d.reload(removed)
				}
				text := ""
				last := strings.Replace(settled, "example.com", "example.org", 1)
				for line := range strings.Lines(last) {
					text += line
					d.reload(write(text))
					end := time.Now().Add(pause)
					for again := d.reloader.RecheckAfter(); again > 0 &&
						time.Now().Add(again).Before(end); again = d.reloader.RecheckAfter() {
						d.reload(passed)
					}
					time.Sleep(time.Until(end))
					d.wantGeneration(line, 1)
				}
				d.wantReload("the whole file", passed, 2)
				got := only(d.wants[1]).Identity.Service
				if got != "https://pulumi.example.org" || len(d.wants) != 2 {
					d.Errorf("%d generations were delivered, the last with the service %s", len(d.wants), got)
				}
			})
		}
	}

	withReloader(t, "a file without an id is accepted at once", func(d *reloadTest) {
		d.reload(write(settled))
		d.wantReload("a file without an id", write(token), 2)
	})

	withReloader(t, "an empty or missing file is rejected after two seconds", func(d *reloadTest) {
		wantResult := func(rejected bool, again time.Duration) {
			d.Helper()
			if err := d.reloader.Reload(); (err != nil) != rejected {
				d.Errorf("Reload returned the error %v, want an error: %v", err, rejected)
			}
			d.wantRecheck(again)
		}
		d.file = token
		wantResult(false, 0)
		d.file = ""
		wantResult(false, 2*time.Second)
		time.Sleep(2 * time.Second)
		wantResult(true, 2*time.Second)
		view, log := d.reloader.State(), d.takeLog()
		if view.Rejection == nil || !strings.Contains(view.Rejection.Reason, "missing or empty") ||
			!strings.Contains(log, "missing or empty") {
			d.Errorf("the state is %+v, the log\n%s", view, log)
		}
		d.file = token
		wantResult(false, 0)
		d.wantGeneration("after the content is restored", 1)
		if len(d.wants) != 1 {
			d.Errorf("%d generations were delivered, want 1", len(d.wants))
		}
		d.file, d.path = "", "" // no file at any search path
		wantResult(false, 2*time.Second)
		time.Sleep(5 * time.Second)
		wantResult(true, 0)
	})
}
