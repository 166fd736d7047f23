package runner

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cmwa-project/cmwa/cloud"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// logServer stores the log of one step in memory, and rejects batches that leave a gap.
// Respond, if set, is called before each batch, and may respond instead.
type logServer struct {
	respond    func(batch cloud.LogBatch, size int) (status int, err error)
	strict     bool      // refuses a batch at an earlier offset, and answers how many lines are stored
	onAccepted func(int) // called by the sender, if set

	mu      sync.Mutex
	lines   []cloud.LogLine
	batches []arrival
	bad     []string
}

// arrival is one accepted batch.
type arrival struct {
	at    time.Time
	lines int
	bytes int // of the request
}

func (s *logServer) RoundTrip(r *http.Request) (*http.Response, error) {
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	var batch cloud.LogBatch
	if err := json.Unmarshal(text, &batch); err != nil {
		return nil, err
	}
	answer := func(status int) *http.Response {
		body := io.NopCloser(strings.NewReader("{}"))
		return &http.Response{StatusCode: status, Header: http.Header{}, Body: body, Request: r}
	}
	if s.respond != nil {
		switch status, err := s.respond(batch, len(text)); {
		case err != nil:
			return nil, err
		case status != 0:
			return answer(status), nil
		}
	}
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.strict && batch.Offset != len(s.lines) {
		refusal := answer(http.StatusBadRequest)
		refusal.Body = io.NopCloser(strings.NewReader(fmt.Sprintf(`{"code":400,"cmwaNextOffset":%d}`, len(s.lines))))
		return refusal, nil
	}
	if batch.Offset > len(s.lines) || batch.Offset < 0 {
		s.bad = append(s.bad, fmt.Sprintf("a batch at %d, the log has %d lines", batch.Offset, len(s.lines)))
		return answer(http.StatusBadRequest), nil
	}
	for i, line := range batch.Lines {
		if at := batch.Offset + i; at < len(s.lines) {
			if s.lines[at].Text != line.Text {
				s.bad = append(s.bad, fmt.Sprintf("line %d comes again and differs", at))
			}
			continue
		}
		s.lines = append(s.lines, line)
	}
	s.batches = append(s.batches, arrival{time.Now(), len(batch.Lines), len(text)})
	return answer(http.StatusOK), nil
}

// text returns the log that has arrived.
func (s *logServer) text(t *testing.T) string {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, bad := range s.bad {
		t.Error(bad)
	}
	return join(s.lines)
}

// open opens a log whose lines are sent to the server. Gone receives the argument of onGone,
// and logged the log of the sender.
func (s *logServer) open(t *testing.T) (log *stepLog, gone *error, logged *bytes.Buffer) {
	logged, gone = &bytes.Buffer{}, new(error)
	logger := slog.New(slog.NewTextHandler(logged, nil))
	jobs := cloud.NewJobs(cloud.JobsOptions{
		Service: "http://service.invalid", JobID: "job", Token: secret.New("token"), Transport: s,
		RequestTimeout: requestTimeout, RetryCount: retryCount, RetryWait: retryWait, RetryMaxWait: retryMaxWait,
	})
	onAccepted := s.onAccepted
	if onAccepted == nil {
		onAccepted = func(int) {}
	}
	ctx, cancel := context.WithCancel(t.Context())
	return openLog(ctx, &sender{
		jobs: jobs, step: 1, onAccepted: onAccepted, log: logger,
		onGone: func(err error) { *gone = err; cancel() },
	}, nil), gone, logged
}

// line returns the i-th line of a log, as a slice. It has at least length bytes.
func line(i, length int) []cloud.LogLine {
	text := fmt.Sprintf("line %d ", i)
	return []cloud.LogLine{{Time: time.Now(), Text: text + strings.Repeat("x", max(0, length-len(text)-1)) + "\n"}}
}

func TestStepLogBatches(t *testing.T) {
	InBubble(t, "line after a silence is sent almost immediately", func(t *testing.T) {
		s := &logServer{}
		log, _, _ := s.open(t)
		for i := range 5 {
			time.Sleep(time.Second)
			written := time.Now()
			log.add(line(i, 0))
			log.add(line(i, 0)) // in the same batch
			time.Sleep(time.Second)
			synctest.Wait()
			if last := s.batches[len(s.batches)-1]; last.at.Sub(written) > 50*time.Millisecond || last.lines != 2 {
				t.Errorf("a batch of %d lines was sent after %s, want 2 lines within 50ms", last.lines,
					last.at.Sub(written))
			}
		}
		if accepted := log.close(); accepted != 10 {
			t.Errorf("%d lines are accepted, want 10", accepted)
		}
	})

	InBubble(t, "lines in quick succession are collected", func(t *testing.T) {
		s := &logServer{}
		log, _, _ := s.open(t)
		begin := time.Now()
		for i := range 1000 {
			time.Sleep(10 * time.Millisecond)
			log.add(line(i, 0))
		}
		log.close()
		if n, most := len(s.batches), int(time.Since(begin)/batchInterval)+2; n > most {
			t.Errorf("%d batches in %s, want at most %d", n, time.Since(begin), most)
		}
		s.text(t)
	})

	InBubble(t, "long log is sent in few batches of limited size", func(t *testing.T) {
		s := &logServer{respond: func(cloud.LogBatch, int) (int, error) {
			time.Sleep(100 * time.Millisecond)
			return 0, nil
		}}
		log, _, _ := s.open(t)
		begin := time.Now()
		const lines = 30_000
		var want strings.Builder
		for i := range lines {
			added := line(i, 100)
			want.WriteString(added[0].Text)
			log.add(added)
		}
		log.close()
		if s.text(t) != want.String() {
			t.Error("the log is incomplete")
		}
		for _, batch := range s.batches {
			if batch.lines > batchLines || batch.bytes > 2*fullBytes {
				t.Errorf("a batch has %d lines and %d bytes, want at most %d and %d", batch.lines, batch.bytes,
					batchLines, 2*fullBytes)
			}
		}
		if took := time.Since(begin); took > 5*time.Second {
			t.Errorf("3 MB took %s with responses after 100 ms, want at most 5s", took)
		}
	})

	InBubble(t, "batch without a response is sent again unchanged", func(t *testing.T) {
		calls := 0
		s := &logServer{}
		s.respond = func(batch cloud.LogBatch, _ int) (int, error) {
			calls++
			switch calls % 4 {
			case 1:
				return 503, nil
			case 2: // accepted, and the response is lost
				s.mu.Lock()
				if batch.Offset == len(s.lines) {
					s.lines = append(s.lines, batch.Lines...)
				}
				s.mu.Unlock()
				return 0, errors.New("connection reset")
			}
			return 0, nil
		}
		log, _, _ := s.open(t)
		var want strings.Builder
		for i := range 200 {
			time.Sleep(100 * time.Millisecond)
			log.add(line(i, 0))
			want.WriteString(line(i, 0)[0].Text)
		}
		if accepted := log.close(); accepted != 200 || s.text(t) != want.String() {
			t.Errorf("%d lines are accepted, want 200; the log is\n%s", accepted, s.text(t))
		}
	})

	InBubble(t, "batch that is too large is halved and the size remembered", func(t *testing.T) {
		const limit = 10 << 10
		refusals := 0
		s := &logServer{respond: func(_ cloud.LogBatch, size int) (int, error) {
			if size > limit {
				refusals++
				return http.StatusRequestEntityTooLarge, nil
			}
			return 0, nil
		}}
		log, _, _ := s.open(t)
		var want strings.Builder
		for i := range 3000 {
			length := 100
			if i == 1500 {
				length = maxLine // too large: is split
			}
			log.add(line(i, length))
			want.WriteString(line(i, length)[0].Text)
		}
		log.close()
		if s.text(t) != want.String() {
			t.Error("the log is incomplete")
		}
		if refusals > 40 {
			t.Errorf("%d batches were too large, want at most 40", refusals)
		}
	})

	InBubble(t, "full queue blocks the step while the service makes progress", func(t *testing.T) {
		s := &logServer{respond: func(cloud.LogBatch, int) (int, error) {
			time.Sleep(8 * time.Second)
			return 0, nil
		}}
		log, _, _ := s.open(t)
		var want strings.Builder
		begin := time.Now()
		for i := range 400 { // 25 MB
			log.add(line(i, maxLine))
			want.WriteString(line(i, maxLine)[0].Text)
			log.queue.mu.Lock()
			waiting := log.queue.bytes
			log.queue.mu.Unlock()
			if waiting > maxLogQueue+maxLine+lineOverhead {
				t.Fatalf("%d bytes wait, want at most %d", waiting, maxLogQueue+maxLine+lineOverhead)
			}
		}
		if time.Since(begin) < time.Minute {
			t.Error("the step was not blocked, want at least 1m")
		}
		log.close()
		if s.text(t) != want.String() {
			t.Error("the log is incomplete")
		}
	})
}

func TestStepLogFaults(t *testing.T) {
	InBubble(t, "oldest lines are dropped while the service accepts nothing", func(t *testing.T) {
		back := time.Now().Add(time.Minute)
		s := &logServer{respond: func(cloud.LogBatch, int) (int, error) {
			if time.Now().Before(back) {
				return 503, nil
			}
			return 0, nil
		}}
		log, _, _ := s.open(t)
		begin := time.Now()
		const lines = 400 // 25 MB
		for i := range lines {
			log.add(line(i, maxLine))
		}
		if took := time.Since(begin); took < stallLimit || took > stallLimit+time.Second {
			t.Errorf("the step was blocked for %s, want %s", took, stallLimit)
		}
		accepted := log.close()
		text := s.text(t)
		if accepted != len(s.lines) {
			t.Errorf("close returns %d accepted lines, want %d, which have arrived", accepted, len(s.lines))
		}
		if n := strings.Count(text, "lines missing here"); n != 1 {
			t.Fatalf("the loss is reported %d times, want once", n)
		}
		before, after, _ := strings.Cut(text, "[lines missing here")
		var lost int
		if _, err := fmt.Sscanf(after, " because the service did not accept them: %d]", &lost); err != nil {
			t.Fatal(err)
		}
		if arrived := strings.Count(before, "line ") + strings.Count(after, "line "); arrived+lost != lines {
			t.Errorf("%d lines have arrived and %d are reported as lost, want %d together", arrived, lost, lines)
		}
		if !strings.Contains(after, fmt.Sprintf("line %d ", lines-1)) {
			t.Error("the newest line is lost")
		}
	})

	InBubble(t, "lines that the service has stored are not sent again in other batches", func(t *testing.T) {
		attempts := 0
		s := &logServer{strict: true}
		s.respond = func(batch cloud.LogBatch, _ int) (int, error) {
			switch attempts++; attempts {
			case 1: // the batch is stored, and the response is lost
				s.mu.Lock()
				defer s.mu.Unlock()
				s.lines = append(s.lines, batch.Lines...)
				return 502, nil
			case 2: // a proxy refuses the same batch
				return 413, nil
			}
			return 0, nil
		}
		log, _, _ := s.open(t)
		const lines = 50
		for i := range lines {
			log.add(line(i, 100))
		}
		if accepted := log.close(); accepted != lines {
			t.Errorf("%d lines are accepted, want %d", accepted, lines)
		}
		if text := s.text(t); strings.Count(text, "line ") != lines || strings.Contains(text, "missing") {
			t.Errorf("the log has %d lines, want %d", strings.Count(text, "line "), lines)
		}
	})

	InBubble(t, "log is dropped after flushTimeout without progress", func(t *testing.T) {
		s := &logServer{respond: func(cloud.LogBatch, int) (int, error) { return 500, nil }}
		log, gone, logged := s.open(t)
		begin := time.Now()
		log.add(line(0, 0))
		if accepted := log.close(); accepted != 0 {
			t.Errorf("%d lines are accepted, want 0", accepted)
		}
		if took := time.Since(begin); took < flushTimeout || took > flushTimeout+time.Minute {
			t.Errorf("the log was dropped after %s, want %s", took, flushTimeout)
		}
		if *gone != nil || strings.Count(logged.String(), "log dropped") != 1 {
			t.Errorf("onGone got %v, want no call; the log is\n%s\nwant one message about a dropped log", *gone, logged)
		}
	})

	InBubble(t, "dropped log is logged once while the sender ends", func(t *testing.T) {
		s := &logServer{onAccepted: func(int) { time.Sleep(flushTimeout + time.Minute) }} // longer than close waits
		log, _, logged := s.open(t)
		log.add(line(0, 0))
		if accepted := log.close(); accepted != 1 {
			t.Errorf("%d lines are accepted, want 1", accepted)
		}
		if n := strings.Count(logged.String(), "log dropped"); n != 1 {
			t.Errorf("the dropped log is logged %d times, want once", n)
		}
	})

	t.Run("rejected log is not sent further", func(t *testing.T) {
		for _, status := range []int{400, 403, 405, 422, 501} {
			InBubble(t, fmt.Sprint(status), func(t *testing.T) {
				calls := 0
				s := &logServer{respond: func(cloud.LogBatch, int) (int, error) { calls++; return status, nil }}
				log, gone, logged := s.open(t)
				begin := time.Now()
				for i := range 20_000 { // 20 MB, more than the queue takes
					log.add(line(i, 1000))
				}
				log.close()
				if took := time.Since(begin); took > time.Minute {
					t.Errorf("it took %s, want at most 1m", took)
				}
				if *gone != nil || calls > 100 || strings.Count(logged.String(), "log rejected") != 1 {
					t.Errorf("got %d calls, want at most 100; onGone got %v, want no call; the log is\n%s\n"+
						"want one message about a rejected log", calls, *gone, logged)
				}
			})
		}
	})

	InBubble(t, "rejected line costs only that line", func(t *testing.T) {
		s := &logServer{respond: func(batch cloud.LogBatch, _ int) (int, error) {
			for _, line := range batch.Lines {
				if strings.HasPrefix(line.Text, "line 77 ") {
					return 400, nil
				}
			}
			return 0, nil
		}}
		log, _, _ := s.open(t)
		for i := range 200 {
			log.add(line(i, 0))
		}
		log.close()
		text := s.text(t)
		if strings.Count(text, "line ") != 199 || !strings.Contains(text, "did not accept them: 1]") {
			t.Errorf("the log is\n%s\nwant 199 lines and the report of a lost one", text)
		}
	})

	t.Run("log of a job that the service no longer has ends and does not block the step", func(t *testing.T) {
		for _, status := range []int{401, 404, 409, 410, 412} {
			InBubble(t, fmt.Sprint(status), func(t *testing.T) {
				calls := 0
				s := &logServer{respond: func(cloud.LogBatch, int) (int, error) { calls++; return status, nil }}
				log, gone, _ := s.open(t)
				begin := time.Now()
				for i := range 500 {
					log.add(line(i, maxLine))
				}
				if accepted := log.close(); accepted != 0 || calls < 3 || calls > 20 || *gone == nil {
					t.Errorf("%d lines were accepted in %d calls, want 0 in 3 to 20; onGone got %v, want an error",
						accepted, calls, *gone)
				}
				if took := time.Since(begin); took < 30*time.Second || took > time.Minute {
					t.Errorf("it took %s, want 30s to 1m", took)
				}
			})
		}
	})
}
