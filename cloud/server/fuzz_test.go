package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/cmwa-project/cmwa/cloud/server/keys"
)

func FuzzDecodeBatch(f *testing.F) {
	f.Add([]byte(`{"offset":0,"lines":[{"t":"2026-01-01T00:00:00.5+02:00","l":"a\n"}]}`))
	f.Add([]byte(`{"offset":0,"lines":[{"t":"9999-12-31T00:00:00Z","l":"\ud800"}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		batch, err := decodeBatch(text)
		if err != nil {
			if !errors.As(err, new(*problem)) {
				t.Fatalf("refused with an error of type %T", err)
			}
			return
		}
		lines, err := unpackLines(packLines(batch.Lines))
		if err != nil || len(lines) != len(batch.Lines) {
			t.Fatalf("%d packed lines were unpacked as %d: %v", len(batch.Lines), len(lines), err)
		}
		for i, line := range lines {
			if line.Text != batch.Lines[i].Text || !line.Time.Equal(batch.Lines[i].Time) ||
				!utf8.ValidString(line.Text) {
				t.Fatalf("line %+v was unpacked as %+v", batch.Lines[i], line)
			}
		}
	})
}

func FuzzUnpackLines(f *testing.F) {
	f.Add([]byte{2, 1, 'a'})
	f.Fuzz(func(t *testing.T, packed []byte) {
		lines, err := unpackLines(packed)
		if err == nil && len(packed) > 0 && len(lines) == 0 {
			t.Fatal("no lines were unpacked from a batch that is not empty")
		}
	})
}

func FuzzReadRequest(f *testing.F) {
	f.Add([]byte(`{"operation":"update","agentPoolID":null,"sourceContext":{"git":{"repoUrl":"x","repoDir":"a/b",` +
		`"gitAuth":{"accessToken":{"secret":"s"}}}}}`))
	f.Add([]byte(`{"cmwaSteps":[{"run":"x","timeout":"1s"}],"executorContext":{"executorImage":{"reference":"r",` +
		`"credentials":null}}}`))
	k, err := keys.FromBytes(make([]byte, keys.Size))
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		refused := func(err error) bool {
			if err != nil && !errors.As(err, new(*problem)) {
				t.Fatalf("refused with an error of type %T: %v", err, err)
			}
			return err != nil
		}
		r, sent, err := readRequest(text)
		if refused(err) {
			return
		}
		settings, err := effectiveSettings(stack{key: k}, sent, true)
		if refused(err) {
			return
		}
		d, err := compile(jobSpec{operation: r.Operation, steps: r.Steps, timeout: r.Timeout, settings: settings,
			defaultImage: "d"})
		if refused(err) {
			return
		}
		written, err := json.Marshal(d)
		if err != nil || len(d.Steps) < 2 || d.Steps[0].Run != "" || d.Image.Reference == "" {
			t.Fatalf("compiled to %s (%v)", written, err)
		}
	})
}

func FuzzMerge(f *testing.F) {
	f.Add([]byte(`{"a":{"b":1}}`), []byte(`{"a":{"b":null,"c":{"d":null}}}`))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		base, errA := decodeTree(a)
		patch, errB := decodeTree(b)
		if errA != nil || errB != nil {
			return
		}
		before, err := json.Marshal(base)
		if err != nil {
			t.Fatal(err)
		}
		merged := merge(base, patch)
		if diff := cmp.Diff(merged, merge(merged, patch)); diff != "" {
			t.Fatalf("a second merge changes the result:\n%s", diff)
		}
		for name, value := range patch {
			if _, found := merged[name]; found != (value != nil) {
				t.Fatalf("%q is %v in the patch; found in the result: %v", name, value, found)
			}
		}
		if after, err := json.Marshal(base); err != nil || !bytes.Equal(before, after) {
			t.Fatalf("the base was changed from %s to %s", before, after)
		}
	})
}

func FuzzParseCursor(f *testing.F) {
	f.Add("1.2")
	f.Add("+1.2")
	f.Fuzz(func(t *testing.T, token string) {
		at, err := parseCursor(token, 5)
		if err == nil && token != "" && (at.String() != token || at.step > 5 || at.step < 0 || at.position < 0) {
			t.Fatalf("parseCursor(%q) = %+v", token, at)
		}
	})
}

func FuzzParseUserAgent(f *testing.F) {
	f.Add("cmwa/1.0 (linux/amd64; host=a; pid=7)")
	f.Fuzz(func(t *testing.T, text string) {
		a := parseUserAgent(text, "x:1")
		for _, part := range []string{a.Hostname, a.PID, a.Version, a.Platform} {
			if len(part) > maxAgent || !utf8.ValidString(part) {
				t.Fatalf("%q is too long or not UTF-8", part)
			}
		}
	})
}

// BenchmarkJob measures the time of one call. Each iteration makes the twelve calls of one
// job from its claim to its end. The job has three steps, each with one line.
func BenchmarkJob(b *testing.B) {
	w := newWorld(b)
	p, at := w.pool("p"), w.stack("s")
	for range b.N {
		w.deploy(at, steps(2))
	}
	b.ResetTimer()
	start := time.Now()
	for range b.N {
		c := w.mustClaim(p)
		c.definition()
		c.heartbeat()
		c.runs(0, 2)
	}
	b.ReportMetric(float64(time.Since(start).Microseconds())/float64(b.N*12), "µs/call")
}

// BenchmarkPollIdle measures a poll that finds no job, with 1,000 queued jobs of stacks that have a running one.
func BenchmarkPollIdle(b *testing.B) {
	w := newWorld(b)
	p := w.pool("p")
	for i := range 10 {
		at := w.stack(fmt.Sprint("s", i))
		for range 101 {
			w.deploy(at, steps(1))
		}
		w.mustClaim(p)
	}
	for b.Loop() {
		if w.claim(p) != nil {
			b.Fatal("there is a job")
		}
	}
}

// BenchmarkLog measures writing and reading a log of 50 MB in 200 batches.
func BenchmarkLog(b *testing.B) {
	w := newWorld(b)
	p, at := w.pool("p"), w.stack("s")
	line := string(bytes.Repeat([]byte("x"), 249)) + "\n"
	lines := make([]string, 1000)
	for i := range lines {
		lines[i] = line
	}
	for range b.N {
		id := w.deploy(at, steps(1))
		c := w.mustClaim(p)
		c.status(0, running)
		start := time.Now()
		for i := range 200 {
			if got := c.logs(0, i*len(lines), lines...); got != 200 {
				b.Fatal(got)
			}
		}
		b.ReportMetric(time.Since(start).Seconds(), "s/write")
		c.status(0, succeeded)
		c.runs(1, 1)
		start = time.Now()
		if log, complete := w.log(at, id); !complete || len(log) < 50_000_000 {
			b.Fatalf("the log has %d bytes, want at least 50,000,000; complete %v, want true", len(log), complete)
		}
		b.ReportMetric(time.Since(start).Seconds(), "s/read")
	}
}
