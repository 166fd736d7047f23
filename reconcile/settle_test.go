package reconcile_test

import (
	"fmt"
	"io/fs"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// renamed writes a file that takes the place of the one before.
func (*desk) renamed(content string) func(*desk) {
	return func(d *desk) { d.file, d.gone, d.id.Device, d.id.Inode = content, nil, 1, d.id.Inode+1 }
}

// removed takes the file away.
func (*desk) removed() func(*desk) {
	return func(d *desk) { d.gone, d.file = fs.ErrNotExist, "" }
}

// created writes a file where there is none, under a number that may be used again.
func (*desk) created(content string) func(*desk) {
	return func(d *desk) { d.file, d.gone = content, nil }
}

// look makes an edit and looks, as the watcher would have it.
func (d *desk) look(edit func(*desk)) {
	edit(d)
	_ = d.reloader.Reload()
}

// due lets the time pass until the reloader must check again, and reloads.
func (d *desk) due() { d.look(func(d *desk) { time.Sleep(d.reloader.RecheckAfter()) }) }

// settled is the configuration of these tests: another service, another token, a port.
const settled = `token: pul-c4n4ry
service_url: https://pulumi.example.com
deploy_target: process
http_server_port: 9999
polling_interval: 7s
`

// wantGeneration checks which generation is in force.
func (d *desk) wantGeneration(t *testing.T, what string, want uint64) {
	t.Helper()
	if view := d.reloader.View(); view.Generation != want || view.Rejection != nil {
		t.Fatalf("%s: generation %d is in force, want %d; rejected is %v", what, view.Generation, want, view.Rejection)
	}
}

func TestReloader(t *testing.T) {
	const token = "token: pul-c4n4ry\n"
	begin := func(t *testing.T, d *desk) {
		t.Helper()
		d.look(d.renamed(settled))
		d.wantGeneration(t, "at first", 1)
		if again := d.reloader.RecheckAfter(); again != 0 {
			t.Fatalf("the first look is followed by another one after %s", again)
		}
		time.Sleep(time.Hour)
	}

	t.Run("a change in place that moves something waits for a quiet second", func(t *testing.T) {
		for name, content := range map[string]string{
			"service_url":     strings.Replace(settled, "example.com", "example.org", 1),
			"deploy_target":   strings.Replace(settled, "process", "docker", 1),
			"port":            strings.Replace(settled, "9999", "9998", 1),
			"token":           strings.Replace(settled, "c4n4ry", "c4n4ry2", 1),
			"token_file":      strings.Replace(settled, "token: pul-c4n4ry", "token_file: beside", 1),
			"a pool more":     settled + "pools: [{name: default}, {name: more, token: pul-c4n4ry3}]\n",
			"another pool":    settled + "pools: [{name: more}]\n",
			"first line only": token,
		} {
			t.Run(name, func(t *testing.T) {
				inBubble(t, func(t *testing.T, d *desk) {
					d.beside["beside"] = "pul-c4n4ry"
					begin(t, d)
					d.look(d.write(content))
					d.wantGeneration(t, "at once", 1)
					if again := d.reloader.RecheckAfter(); again != time.Second {
						t.Fatalf("the reloader checks again after %s, want 1s", again)
					}
					time.Sleep(time.Second - time.Millisecond)
					d.look(func(*desk) {}) // for any reason
					d.wantGeneration(t, "almost a second later", 1)
					d.due()
					d.wantGeneration(t, "a second later", 2)
					if again := d.reloader.RecheckAfter(); again != 0 {
						t.Errorf("the reloader checks again after %s, want never", again)
					}
				})
			})
		}
	})

	t.Run("a change in place that moves nothing is taken at once", func(t *testing.T) {
		inBubble(t, func(t *testing.T, d *desk) {
			begin(t, d)
			for i, more := range []string{"log_level: debug\n", "max_concurrent_workflows: 3\n", "docker: {memory: 1g}\n", "# why\n"} {
				d.look(func(d *desk) { d.file += more })
				d.wantGeneration(t, more, uint64(i)+2)
			}
		})
	})

	t.Run("a change that moves nothing waits for one that does", func(t *testing.T) {
		inBubble(t, func(t *testing.T, d *desk) {
			begin(t, d)
			d.look(d.write(token))
			time.Sleep(500 * time.Millisecond)
			d.look(d.write(settled + "log_level: debug\n"))
			d.wantGeneration(t, "the rest of the file", 1)
			d.due()
			d.wantGeneration(t, "a second later", 2)
			d.look(d.write(settled))
			d.wantGeneration(t, "another such change", 3)
		})
	})

	t.Run("a file that is renamed into place is taken at once", func(t *testing.T) {
		inBubble(t, func(t *testing.T, d *desk) {
			begin(t, d)
			d.look(d.renamed(token))
			d.wantGeneration(t, "another file", 2)
			d.look(d.write(token + "http_server_port: 9998\n"))
			d.wantGeneration(t, "a write in place after that", 2)
			d.look(d.renamed(token + "http_server_port: 9997\n"))
			d.wantGeneration(t, "a rename while that one waits", 3)
		})
	})

	t.Run("a write in place waits after a rename that changed nothing", func(t *testing.T) {
		inBubble(t, func(t *testing.T, d *desk) {
			begin(t, d)
			d.look(d.renamed(settled))
			d.look(d.write(token))
			d.wantGeneration(t, "the first line", 1)
			d.due()
			d.wantGeneration(t, "a second later", 2)
		})
	})

	t.Run("a file that is made in the place of another one waits", func(t *testing.T) {
		inBubble(t, func(t *testing.T, d *desk) {
			begin(t, d)
			d.written = true
			d.look(d.renamed(token))
			d.wantGeneration(t, "the first line", 1)
			d.due()
			d.wantGeneration(t, "a second later", 2)
			d.written = false
			d.look(d.renamed(settled))
			d.wantGeneration(t, "a rename", 3)
		})
	})

	t.Run("a file that is written where there was none waits too", func(t *testing.T) {
		inBubble(t, func(t *testing.T, d *desk) {
			begin(t, d)
			d.look(d.removed())
			time.Sleep(60 * time.Millisecond)
			d.look(d.created(token))
			d.wantGeneration(t, "the first line after a removal", 1)
			time.Sleep(60 * time.Millisecond)
			d.look(d.created(settled))
			d.wantGeneration(t, "the whole file", 1)
			if again := d.reloader.RecheckAfter(); again != 0 {
				t.Errorf("the reloader checks again after %s although nothing has changed", again)
			}
			d.look(func(d *desk) { d.path, d.file, d.id.Inode = "nearer/agent.yaml", token, 77 })
			d.wantGeneration(t, "a file in a nearer folder", 1)
			d.due()
			d.wantGeneration(t, "a second later", 2)
		})
	})

	t.Run("a mistake is refused at once and its correction waits", func(t *testing.T) {
		inBubble(t, func(t *testing.T, d *desk) {
			begin(t, d)
			d.look(d.write(settled + "log_level: 7\n"))
			if view := d.reloader.View(); view.Rejection == nil || view.Generation != 1 {
				t.Fatalf("the mistake is not refused: %+v", view)
			}
			d.look(d.write(token))
			if view := d.reloader.View(); view.Generation != 1 {
				t.Fatalf("generation %d is in force before the file is quiet", view.Generation)
			}
			d.due()
			d.wantGeneration(t, "a second later", 2)
		})
	})

	// A writer that pauses at each line, for less than a second, and a watcher that
	// looks at any time: no part of the file that would move something is in force.
	t.Run("no part of a file that is written line by line comes into force", func(t *testing.T) {
		for _, pause := range []time.Duration{time.Millisecond, 80 * time.Millisecond, 999 * time.Millisecond} {
			for _, removed := range []bool{false, true} {
				t.Run(fmt.Sprintf("every %s, removed %v", pause, removed), func(t *testing.T) {
					inBubble(t, func(t *testing.T, d *desk) {
						begin(t, d)
						d.look(func(d *desk) { d.file = "" })
						if removed {
							d.look(d.removed())
						}
						text := ""
						last := strings.Replace(settled, "example.com", "example.org", 1)
						for line := range strings.Lines(last) {
							text += line
							d.look(d.created(text))
							end := time.Now().Add(pause)
							for again := d.reloader.RecheckAfter(); again > 0 && time.Now().Add(again).Before(end); again = d.reloader.RecheckAfter() {
								d.due()
							}
							time.Sleep(time.Until(end))
							d.wantGeneration(t, line, 1)
						}
						d.due()
						d.wantGeneration(t, "the whole file", 2)
						if got := only(d.wants[1]).Identity.Service; got != "https://pulumi.example.org" || len(d.wants) != 2 {
							t.Errorf("%d generations were wanted, the last with the service %s", len(d.wants), got)
						}
					})
				})
			}
		}
	})
}

func TestReloaderWithoutFileID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk()
		d.look(d.write(settled))
		d.look(d.write("token: pul-c4n4ry\n"))
		d.wantGeneration(t, "a file without an id", 2)
	})
}
