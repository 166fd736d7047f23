package reconcile_test

import (
	"fmt"
	"io/fs"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// renamed renames another file to the path of the file.
func (*reloadTest) renamed(content string) func(*reloadTest) {
	return func(d *reloadTest) { d.file, d.findErr, d.id.Device, d.id.Inode = content, nil, 1, d.id.Inode+1 }
}

// removed removes the file.
func (*reloadTest) removed() func(*reloadTest) {
	return func(d *reloadTest) { d.findErr, d.file = fs.ErrNotExist, "" }
}

// created creates the file, with an inode that may have been used before.
func (*reloadTest) created(content string) func(*reloadTest) {
	return func(d *reloadTest) { d.file, d.findErr = content, nil }
}

// reload makes an edit and reloads, as after an event of the watcher.
func (d *reloadTest) reload(edit func(*reloadTest)) {
	edit(d)
	_ = d.reloader.Reload()
}

// recheck waits for the time of RecheckAfter, and reloads.
func (d *reloadTest) recheck() {
	d.reload(func(d *reloadTest) { time.Sleep(d.reloader.RecheckAfter()) })
}

// settled is the configuration in force in these tests.
const settled = `token: pul-c4n4ry
service_url: https://pulumi.example.com
deploy_target: process
http_server_port: 9999
polling_interval: 7s
`

// wantGeneration checks which generation is in force.
func (d *reloadTest) wantGeneration(t *testing.T, what string, want uint64) {
	t.Helper()
	if view := d.reloader.State(); view.Generation != want || view.Rejection != nil {
		t.Fatalf("%s: generation %d is in force, want %d; the rejection is %v", what, view.Generation, want,
			view.Rejection)
	}
}

func TestReloader(t *testing.T) {
	const token = "token: pul-c4n4ry\n"
	begin := func(t *testing.T, d *reloadTest) {
		t.Helper()
		d.reload(d.renamed(settled))
		d.wantGeneration(t, "at first", 1)
		if again := d.reloader.RecheckAfter(); again != 0 {
			t.Fatalf("RecheckAfter is %s after the first reload, want 0", again)
		}
		time.Sleep(time.Hour)
	}

	t.Run("a change in place that moves something waits for a second without changes", func(t *testing.T) {
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
			t.Run(name, func(t *testing.T) {
				withReloader(t, func(t *testing.T, d *reloadTest) {
					d.named["named"] = "pul-c4n4ry"
					begin(t, d)
					d.reload(d.write(content))
					d.wantGeneration(t, "at once", 1)
					if again := d.reloader.RecheckAfter(); again != time.Second {
						t.Fatalf("RecheckAfter is %s, want 1s", again)
					}
					time.Sleep(time.Second - time.Millisecond)
					d.reload(func(*reloadTest) {}) // without an edit
					d.wantGeneration(t, "almost a second later", 1)
					d.recheck()
					d.wantGeneration(t, "a second later", 2)
					if again := d.reloader.RecheckAfter(); again != 0 {
						t.Errorf("RecheckAfter is %s, want 0", again)
					}
				})
			})
		}
	})

	t.Run("a change in place that moves nothing is accepted at once", func(t *testing.T) {
		withReloader(t, func(t *testing.T, d *reloadTest) {
			begin(t, d)
			for i, more := range []string{"log_level: debug\n", "max_concurrent_workflows: 3\n",
				"docker: {memory: 1g}\n", "# why\n"} {
				d.reload(func(d *reloadTest) { d.file += more })
				d.wantGeneration(t, more, uint64(i)+2)
			}
		})
	})

	t.Run("a change that moves nothing waits for an earlier change that moves something", func(t *testing.T) {
		withReloader(t, func(t *testing.T, d *reloadTest) {
			begin(t, d)
			d.reload(d.write(token))
			time.Sleep(500 * time.Millisecond)
			d.reload(d.write(settled + "log_level: debug\n"))
			d.wantGeneration(t, "the other lines of the file", 1)
			d.recheck()
			d.wantGeneration(t, "a second later", 2)
			d.reload(d.write(settled))
			d.wantGeneration(t, "a later change that moves nothing", 3)
		})
	})

	t.Run("a file that is renamed into place is accepted at once", func(t *testing.T) {
		withReloader(t, func(t *testing.T, d *reloadTest) {
			begin(t, d)
			d.reload(d.renamed(token))
			d.wantGeneration(t, "a renamed file", 2)
			d.reload(d.write(token + "http_server_port: 9998\n"))
			d.wantGeneration(t, "a write in place after the rename", 2)
			d.reload(d.renamed(token + "http_server_port: 9997\n"))
			d.wantGeneration(t, "a rename while the write waits", 3)
		})
	})

	t.Run("a write in place waits after a rename that changed nothing", func(t *testing.T) {
		withReloader(t, func(t *testing.T, d *reloadTest) {
			begin(t, d)
			d.reload(d.renamed(settled))
			d.reload(d.write(token))
			d.wantGeneration(t, "the first line", 1)
			d.recheck()
			d.wantGeneration(t, "a second later", 2)
		})
	})

	t.Run("a file that is created in place of another file waits", func(t *testing.T) {
		withReloader(t, func(t *testing.T, d *reloadTest) {
			begin(t, d)
			d.written = true
			d.reload(d.renamed(token))
			d.wantGeneration(t, "the first line", 1)
			d.recheck()
			d.wantGeneration(t, "a second later", 2)
			d.written = false
			d.reload(d.renamed(settled))
			d.wantGeneration(t, "a rename", 3)
		})
	})

	t.Run("a token file that is written in place waits", func(t *testing.T) {
		withReloader(t, func(t *testing.T, d *reloadTest) {
			d.named["named"] = "pul-c4n4ry"
			d.reload(d.renamed("token_file: named\n"))
			time.Sleep(time.Hour)
			write := func(token string) func(*reloadTest) {
				return func(d *reloadTest) { d.named["named"], d.rewrote = token, "named" }
			}
			d.reload(write("pul-c4"))
			d.wantGeneration(t, "a part of the token", 1)
			time.Sleep(60 * time.Millisecond)
			d.reload(write("pul-c4n4ry2"))
			d.wantGeneration(t, "the whole token", 1)
			d.rewrote = ""
			d.recheck()
			d.wantGeneration(t, "a second later", 2)
			if got := only(d.wants[len(d.wants)-1]).Tuning.Token.Reveal(); len(d.wants) != 2 || got != "pul-c4n4ry2" {
				t.Errorf("%d generations were delivered, the last with the token %q", len(d.wants), got)
			}
			d.reload(func(d *reloadTest) { d.named["named"] = "pul-c4n4ry3" })
			d.wantGeneration(t, "a token file that is renamed into place", 3)
		})
	})

	t.Run("a file that is created at a path without a file waits", func(t *testing.T) {
		withReloader(t, func(t *testing.T, d *reloadTest) {
			begin(t, d)
			d.reload(d.removed())
			time.Sleep(60 * time.Millisecond)
			d.reload(d.created(token))
			d.wantGeneration(t, "the first line after a removal", 1)
			time.Sleep(60 * time.Millisecond)
			d.reload(d.created(settled))
			d.wantGeneration(t, "the whole file", 1)
			if again := d.reloader.RecheckAfter(); again != 0 {
				t.Errorf("RecheckAfter is %s, want 0 with the content in force", again)
			}
			d.reload(func(d *reloadTest) { d.path, d.file, d.id.Inode = "nearer/agent.yaml", token, 77 })
			d.wantGeneration(t, "a file at an earlier search path", 1)
			d.recheck()
			d.wantGeneration(t, "a second later", 2)
		})
	})

	t.Run("a mistake is rejected at once and its correction waits", func(t *testing.T) {
		withReloader(t, func(t *testing.T, d *reloadTest) {
			begin(t, d)
			d.reload(d.write(settled + "log_level: 7\n"))
			if view := d.reloader.State(); view.Rejection == nil || view.Generation != 1 {
				t.Fatalf("the mistake is not rejected: %+v", view)
			}
			d.reload(d.write(token))
			if view := d.reloader.State(); view.Generation != 1 {
				t.Fatalf("generation %d is in force before the file has settled", view.Generation)
			}
			d.recheck()
			d.wantGeneration(t, "a second later", 2)
		})
	})

	// The writer pauses after each line for less than a second, and the watcher reports changes
	// at any time. No incomplete file may come into force.
	t.Run("no part of a file that is written line by line comes into force", func(t *testing.T) {
		for _, pause := range []time.Duration{time.Millisecond, 80 * time.Millisecond, 999 * time.Millisecond} {
			for _, removed := range []bool{false, true} {
				t.Run(fmt.Sprintf("one line every %s, file removed first %v", pause, removed), func(t *testing.T) {
					withReloader(t, func(t *testing.T, d *reloadTest) {
						begin(t, d)
						d.reload(func(d *reloadTest) { d.file = "" })
						if removed {
							d.reload(d.removed())
						}
						text := ""
						last := strings.Replace(settled, "example.com", "example.org", 1)
						for line := range strings.Lines(last) {
							text += line
							d.reload(d.created(text))
							end := time.Now().Add(pause)
							for again := d.reloader.RecheckAfter(); again > 0 &&
								time.Now().Add(again).Before(end); again = d.reloader.RecheckAfter() {
								d.recheck()
							}
							time.Sleep(time.Until(end))
							d.wantGeneration(t, line, 1)
						}
						d.recheck()
						d.wantGeneration(t, "the whole file", 2)
						if got := only(d.wants[1]).Identity.Service; got != "https://pulumi.example.org" ||
							len(d.wants) != 2 {
							t.Errorf("%d generations were delivered, the last with the service %s", len(d.wants), got)
						}
					})
				})
			}
		}
	})
}

func TestReloaderWithoutFileID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newReloadTest()
		d.reload(d.write(settled))
		d.reload(d.write("token: pul-c4n4ry\n"))
		d.wantGeneration(t, "a file without an id", 2)
	})
}
