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
		j := jobState{status: notStarted, steps: make([]store.Step, rapid.IntRange(1, 5).Draw(t, "steps"))}
		for i := range j.steps {
			j.steps[i].Status = notStarted
		}
		statuses := []string{notStarted, running, succeeded, failed, skipped, accepted, ""}
		t.Repeat(map[string]func(*rapid.T){
			"claim": func(t *rapid.T) {
				if j.status == notStarted {
					j.status = accepted
				}
			},
			"report": func(t *rapid.T) {
				before := jobState{j.status, j.ended, slices.Clone(j.steps)}
				step, to := rapid.IntRange(-1, len(j.steps)).Draw(t, "step"), rapid.SampledFrom(statuses).Draw(t, "to")
				changed, err := j.report(step, to)
				if (err != nil || !changed) && !same(before, j) {
					t.Fatalf("a refused or repeated report (%v) changed the state to %+v, from %+v", err, j, before)
				}
				if err == nil && j.steps[step].Status != to {
					t.Fatalf("report %s of step %d was accepted, but the step is %s", to, step, j.steps[step].Status)
				}
				if changed && before.ended != "" {
					t.Fatalf("a job that ended by %s changed to %+v", before.ended, j)
				}
			},
			"honest": func(t *rapid.T) { // the next report of a correct runner
				for i, s := range j.steps {
					if s.Status == succeeded {
						continue
					}
					to := running
					if s.Status == running {
						to = rapid.SampledFrom([]string{succeeded, succeeded, failed}).Draw(t, "end")
					}
					_, err := j.report(i, to)
					if wanted := j.status == accepted || j.status == running; err != nil && wanted && j.ended == "" {
						t.Fatalf("the report of step %d as %s is refused: %v", i, to, err)
					}
					return
				}
			},
			"lines": func(t *rapid.T) {
				step, offset := rapid.IntRange(-1, len(j.steps)).Draw(t, "step"), rapid.IntRange(0, 5).Draw(t, "offset")
				place, err := j.placeBatch(step, offset)
				if err != nil || place == compareBatch {
					return
				}
				s := j.steps[step]
				runs := s.Status == running && j.status == running
				interrupted := s.Status == failed && j.ended == endedByCancel
				if !runs && !interrupted || offset != s.Lines {
					t.Fatalf("lines at offset %d are accepted for step %d of %+v", offset, step, j)
				}
				j.steps[step].Lines++
			},
			"stop": func(t *rapid.T) {
				_ = j.stop(rapid.SampledFrom([]string{endedByCancel, endedByNoHeartbeat}).Draw(t, "by"))
			},
			"": func(t *rapid.T) { checkInvariants(t, j) },
		})
	})
}

func same(a, b jobState) bool {
	return a.status == b.status && a.ended == b.ended && slices.Equal(a.steps, b.steps)
}

// checkInvariants checks a state against the rules of jobState.report.
func checkInvariants(t *rapid.T, j jobState) {
	fail := func(why string) { t.Fatalf("%s: %+v", why, j) }
	first := slices.IndexFunc(j.steps, func(s store.Step) bool { return s.Status != succeeded })
	for i, s := range j.steps {
		if s.Lines > 0 && s.Status == notStarted {
			fail("a step that never ran has lines")
		}
		if first >= 0 && i > first && s.Status != notStarted {
			fail("a step started before the previous step had succeeded")
		}
	}
	started := j.steps[0].Status != notStarted
	switch j.status {
	case notStarted, accepted, skipped:
		if started {
			fail("a job that has not started has a started step")
		}
	case running:
		if !started || first < 0 || j.steps[first].Status == failed {
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
		if j.steps[first].Status == running {
			fail("a step of an ended job runs")
		}
	default:
		fail("no such status")
	}
	if ended := j.status == succeeded || j.status == failed || j.status == skipped; ended != (j.ended != "") {
		fail("the status does not match the reason of the end")
	}
}
