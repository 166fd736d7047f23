package server

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/cmwa-project/cmwa/cloud/server/store"
)

// TestJobStateProperty makes random calls for a job and checks the invariants after each.
func TestJobStateProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		j := job{store.Job{Status: notStarted, Steps: make([]store.Step, rapid.IntRange(1, 5).Draw(t, "steps"))}}
		for i := range j.Steps {
			j.Steps[i].Status = notStarted
		}
		statuses := []string{notStarted, running, succeeded, failed, skipped, accepted, ""}
		t.Repeat(map[string]func(*rapid.T){
			"claim": func(t *rapid.T) {
				if j.Status == notStarted {
					j.Status = accepted
				}
			},
			"report": func(t *rapid.T) {
				before := j
				before.Steps = slices.Clone(j.Steps)
				step, to := rapid.IntRange(-1, len(j.Steps)).Draw(t, "step"), rapid.SampledFrom(statuses).Draw(t, "to")
				changed, err := j.report(step, to)
				if (err != nil || !changed) && !same(before, j) {
					t.Fatalf("a refused or repeated report (%v) changed the state to %+v, from %+v", err, j, before)
				}
				if err == nil && j.Steps[step].Status != to {
					t.Fatalf("report %s of step %d was accepted, but the step is %s", to, step, j.Steps[step].Status)
				}
				if changed && before.Ended != "" {
					t.Fatalf("a job that ended by %s changed to %+v", before.Ended, j)
				}
			},
			"honest": func(t *rapid.T) { // the next report of a correct runner
				for i, s := range j.Steps {
					if s.Status == succeeded {
						continue
					}
					to := running
					if s.Status == running {
						to = rapid.SampledFrom([]string{succeeded, succeeded, failed}).Draw(t, "end")
					}
					_, err := j.report(i, to)
					if wanted := j.Status == accepted || j.Status == running; err != nil && wanted && j.Ended == "" {
						t.Fatalf("the report of step %d as %s is refused: %v", i, to, err)
					}
					return
				}
			},
			"lines": func(t *rapid.T) {
				step, offset := rapid.IntRange(-1, len(j.Steps)).Draw(t, "step"), rapid.IntRange(0, 5).Draw(t, "offset")
				place, err := j.placeBatch(step, offset)
				if err != nil || place == compareBatch {
					return
				}
				s := j.Steps[step]
				runs := s.Status == running && j.Status == running
				interrupted := s.Status == failed && j.Ended == endedByCancel
				if !runs && !interrupted || offset != s.Lines {
					t.Fatalf("lines at offset %d are accepted for step %d of %+v", offset, step, j)
				}
				j.Steps[step].Lines++
			},
			"stop": func(t *rapid.T) {
				_ = j.stop(rapid.SampledFrom([]string{endedByCancel, endedByNoHeartbeat}).Draw(t, "by"))
			},
			"": func(t *rapid.T) { checkInvariants(t, j) },
		})
	})
}

func same(a, b job) bool {
	return a.Status == b.Status && a.Ended == b.Ended && slices.Equal(a.Steps, b.Steps)
}

// checkInvariants checks a state against the rules of job.report.
func checkInvariants(t *rapid.T, j job) {
	fail := func(why string) { t.Fatalf("%s: %+v", why, j) }
	first := slices.IndexFunc(j.Steps, func(s store.Step) bool { return s.Status != succeeded })
	for i, s := range j.Steps {
		if s.Lines > 0 && s.Status == notStarted {
			fail("a step that never ran has lines")
		}
		if first >= 0 && i > first && s.Status != notStarted {
			fail("a step started before the previous step had succeeded")
		}
	}
	started := j.Steps[0].Status != notStarted
	switch j.Status {
	case notStarted, accepted, skipped:
		if started {
			fail("a job that has not started has a started step")
		}
	case running:
		if !started || first < 0 || j.Steps[first].Status == failed {
			fail("a running job has no started step, or no step left to run")
		}
	case succeeded:
		if first >= 0 {
			fail("a job succeeded, but not all of its steps did")
		}
	case failed:
		if first < 0 {
			fail("a job failed, but all its steps succeeded")
		}
		if j.Steps[first].Status == running {
			fail("a step of an ended job runs")
		}
	default:
		fail("no such status")
	}
	if ended := j.Status == succeeded || j.Status == failed || j.Status == skipped; ended != (j.Ended != "") {
		fail("the status does not match the reason of the end")
	}
}
