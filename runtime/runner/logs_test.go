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

// shelf is the log of one step at a service that lives in memory, and refuses
// batches that leave something out. Mood, if set, is asked before each batch and
// may answer in the service's place.
type shelf struct {
	mood func(batch cloud.LogBatch, size int) (status int, err error)

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

func (s *shelf) RoundTrip(r *http.Request) (*http.Response, error) {
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	var batch cloud.LogBatch
	if err := json.Unmarshal(text, &batch); err != nil {
		return nil, err
	}
	answer := func(status int) *http.Response {
		return &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("{}")), Request: r}
	}
	if s.mood != nil {
		switch status, err := s.mood(batch, len(text)); {
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

// text is the log that has arrived.
func (s *shelf) text(t *testing.T) string {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, bad := range s.bad {
		t.Error(bad)
	}
	return join(s.lines)
}

// open begins a log at the shelf. What makes the job gone is returned, too.
func (s *shelf) open(t *testing.T) (log *stepLog, gone *error, words *bytes.Buffer) {
	words, gone = &bytes.Buffer{}, new(error)
	logger := slog.New(slog.NewTextHandler(words, nil))
	jobs := cloud.NewJobs(cloud.JobsOptions{
		Service: "http://service.invalid", JobID: "job", Token: secret.New("token"), Transport: s,
		RequestTimeout: requestTimeout, RetryCount: retryCount, RetryWait: retryWait, RetryMaxWait: retryMaxWait,
	})
	ctx, cancel := context.WithCancel(t.Context())
	return openLog(ctx, &sender{
		jobs: jobs, step: 1, accepted: func(int) {}, log: logger,
		gone: func(err error) { *gone = err; cancel() },
	}), gone, words
}

// line is the i-th line of a log.
func line(i, length int) []cloud.LogLine {
	text := fmt.Sprintf("line %d ", i)
	return []cloud.LogLine{{Time: time.Now(), Text: text + strings.Repeat("x", max(0, length-len(text)-1)) + "\n"}}
}

func TestAQuietStepsLinesLeaveAlmostAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &shelf{}
		log, _, _ := s.open(t)
		for i := range 5 {
			time.Sleep(time.Second)
			written := time.Now()
			log.add(line(i, 0))
			log.add(line(i, 0)) // together with it
			time.Sleep(time.Second)
			synctest.Wait()
			if last := s.batches[len(s.batches)-1]; last.at.Sub(written) > 50*time.Millisecond || last.lines != 2 {
				t.Errorf("%d lines left %s after they were written", last.lines, last.at.Sub(written))
			}
		}
		if told := log.close(); told != 10 {
			t.Errorf("%d lines are told, want 10", told)
		}
	})
}

func TestLinesThatKeepComingAreGathered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &shelf{}
		log, _, _ := s.open(t)
		begin := time.Now()
		for i := range 1000 {
			time.Sleep(10 * time.Millisecond)
			log.add(line(i, 0))
		}
		log.close()
		if n, most := len(s.batches), int(time.Since(begin)/pause)+2; n > most {
			t.Errorf("%d batches in %s, want at most %d", n, time.Since(begin), most)
		}
		s.text(t)
	})
}

func TestALongLogGoesInFewBatchesOfBoundedSize(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &shelf{mood: func(cloud.LogBatch, int) (int, error) { time.Sleep(100 * time.Millisecond); return 0, nil }}
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
			t.Error("the log has not arrived whole")
		}
		for _, batch := range s.batches {
			if batch.lines > batchLines || batch.bytes > 2*fullBytes {
				t.Errorf("a batch has %d lines and %d bytes", batch.lines, batch.bytes)
			}
		}
		if took := time.Since(begin); took > 5*time.Second {
			t.Errorf("3 MB took %s on a line with 100 ms of delay", took)
		}
	})
}

func TestABatchThatWasNotAnsweredComesAgainUnchanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		s := &shelf{}
		s.mood = func(batch cloud.LogBatch, _ int) (int, error) {
			calls++
			switch calls % 4 {
			case 1:
				return 503, nil
			case 2: // accepted, and the answer is lost
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
		if told := log.close(); told != 200 || s.text(t) != want.String() {
			t.Errorf("%d lines are told, the log is\n%s", told, s.text(t))
		}
	})
}

func TestABatchThatIsTooLargeIsHalvedAndTheSizeRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 10 << 10
		refusals := 0
		s := &shelf{mood: func(_ cloud.LogBatch, size int) (int, error) {
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
				length = maxLine // alone too large: cut
			}
			log.add(line(i, length))
			want.WriteString(line(i, length)[0].Text)
		}
		log.close()
		if s.text(t) != want.String() {
			t.Error("the log has not arrived whole")
		}
		if refusals > 40 {
			t.Errorf("%d batches were too large", refusals)
		}
	})
}

func TestAFullJournalHoldsTheStepBackWhileTheServiceMakesProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &shelf{mood: func(cloud.LogBatch, int) (int, error) { time.Sleep(8 * time.Second); return 0, nil }}
		log, _, _ := s.open(t)
		var want strings.Builder
		begin := time.Now()
		for i := range 400 { // 25 MB
			log.add(line(i, maxLine))
			want.WriteString(line(i, maxLine)[0].Text)
			log.journal.mu.Lock()
			waiting := log.journal.bytes
			log.journal.mu.Unlock()
			if waiting > maxWaiting+maxLine+lineCost {
				t.Fatalf("%d bytes wait", waiting)
			}
		}
		if time.Since(begin) < time.Minute {
			t.Error("the step was not held back")
		}
		log.close()
		if s.text(t) != want.String() {
			t.Error("the log has not arrived whole")
		}
	})
}

func TestAServiceThatDoesNotAnswerCostsTheOldestLinesAndSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		back := time.Now().Add(time.Minute)
		s := &shelf{mood: func(cloud.LogBatch, int) (int, error) {
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
			t.Errorf("the step was held back for %s, want %s", took, stallLimit)
		}
		told := log.close()
		text := s.text(t)
		if told != len(s.lines) {
			t.Errorf("%d lines are told and %d have arrived", told, len(s.lines))
		}
		if n := strings.Count(text, "lines of this log that are missing"); n != 1 {
			t.Fatalf("the loss is told %d times", n)
		}
		before, after, _ := strings.Cut(text, "[lines of this log that are missing here")
		var lost int
		if _, err := fmt.Sscanf(after, ", since the service did not take them: %d]", &lost); err != nil {
			t.Fatal(err)
		}
		if arrived := strings.Count(before, "line ") + strings.Count(after, "line "); arrived+lost != lines {
			t.Errorf("%d lines have arrived and %d are said to be lost, of %d", arrived, lost, lines)
		}
		if !strings.Contains(after, fmt.Sprintf("line %d ", lines-1)) {
			t.Error("the newest line is lost")
		}
	})
}

func TestAServiceThatNeverAnswersIsGivenUpAfterAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &shelf{mood: func(cloud.LogBatch, int) (int, error) { return 500, nil }}
		log, gone, words := s.open(t)
		begin := time.Now()
		log.add(line(0, 0))
		if told := log.close(); told != 0 {
			t.Errorf("%d lines are told", told)
		}
		if took := time.Since(begin); took < flushPatience || took > flushPatience+time.Minute {
			t.Errorf("given up after %s, want %s", took, flushPatience)
		}
		if *gone != nil || strings.Count(words.String(), "given up") != 1 {
			t.Errorf("gone: %v, said: %s", *gone, words)
		}
	})
}

func TestALogThatIsRefusedFailsNothing(t *testing.T) {
	for _, status := range []int{400, 403, 405, 422, 501} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				calls := 0
				s := &shelf{mood: func(cloud.LogBatch, int) (int, error) { calls++; return status, nil }}
				log, gone, words := s.open(t)
				begin := time.Now()
				for i := range 100_000 {
					log.add(line(i, 100))
				}
				log.close()
				if took := time.Since(begin); took > time.Minute {
					t.Errorf("it took %s", took)
				}
				if *gone != nil || calls > 100 || strings.Count(words.String(), "refuses this log") != 1 {
					t.Errorf("%d calls, gone: %v, said: %s", calls, *gone, words)
				}
			})
		})
	}
}

func TestOneLineThatIsRefusedCostsThatLineAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &shelf{mood: func(batch cloud.LogBatch, _ int) (int, error) {
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
		if strings.Count(text, "line ") != 199 || !strings.Contains(text, "did not take them: 1]") {
			t.Errorf("the log is\n%s", text)
		}
	})
}

func TestAJobThatIsGoneEndsItsLogAndHoldsNobody(t *testing.T) {
	for _, status := range []int{401, 404, 409, 410, 412} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				calls := 0
				s := &shelf{mood: func(cloud.LogBatch, int) (int, error) { calls++; return status, nil }}
				log, gone, _ := s.open(t)
				begin := time.Now()
				for i := range 500 {
					log.add(line(i, maxLine))
				}
				if told := log.close(); told != 0 || calls < 3 || calls > 20 || *gone == nil {
					t.Errorf("%d lines told in %d calls, gone: %v", told, calls, *gone)
				}
				if took := time.Since(begin); took < 30*time.Second || took > time.Minute {
					t.Errorf("it took %s", took)
				}
			})
		})
	}
}
