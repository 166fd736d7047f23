package doctor

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/schema/report"
)

// Limits of a run.
const (
	checkLimit  = 30 * time.Second // of one check
	returnLimit = 2 * time.Second  // for a check to return after the end of its limit
	slowAfter   = 2 * time.Second  // without a result, until Waiting is called
	atOnce      = 16               // checks at the same time
)

// Check is a check of one pool, or of the agent as a whole.
type Check struct {
	Pool string // name; empty is the agent as a whole
	runtime.SelfCheck
	took time.Duration // of a check that was made before the run
}

// Outcome is the result of a check. Its texts can be printed.
type Outcome struct {
	Pool string
	Name string
	runtime.CheckResult
	Duration time.Duration // 0 for a check that was not made
}

// Reporter receives what a run finds, in calls one after the other.
type Reporter struct {
	// Outcome is called with each outcome, in the order of the checks.
	Outcome func(Outcome)
	// Waiting is called with the checks that run, if none has ended for two seconds.
	Waiting func([]Check)
}

// Run makes the checks, and reports whether none has failed. A check that does not
// return within its limit has failed; its goroutine stays until the process ends. When
// ctx ends, the checks that are left are skipped, and the result is false.
func Run(ctx context.Context, checks []Check, to Reporter) bool {
	// Start all checks. Each waits for the one that it needs.
	outcomes, ended := make([]Outcome, len(checks)), make([]chan struct{}, len(checks))
	slots := make(chan struct{}, atOnce)
	for i := range checks {
		ended[i] = make(chan struct{})
		need := needOf(checks, i)
		go func() {
			defer close(ended[i])
			if need >= 0 {
				<-ended[need]
				if level := outcomes[need].Level; level == runtime.LevelFailed || level == runtime.LevelSkipped {
					result := runtime.CheckSkipped("not checked: it needs %s", checks[need].Name)
					outcomes[i] = outcome(checks[i], result, 0)
					return
				}
			}
			slots <- struct{}{}
			defer func() { <-slots }()
			began := time.Now()
			result := runOne(ctx, checks[i])
			outcomes[i] = outcome(checks[i], result, checks[i].took+time.Since(began))
		}()
	}

	// Report them in order.
	good := true
	slow := time.NewTimer(slowAfter)
	defer slow.Stop()
	for i := range checks {
		for waiting := true; waiting; {
			select {
			case <-ended[i]:
				waiting = false
			case <-slow.C:
				to.Waiting(running(checks, ended))
			}
		}
		good = good && outcomes[i].Level != runtime.LevelFailed
		to.Outcome(outcomes[i])
		slow.Reset(slowAfter)
	}
	return good && ctx.Err() == nil
}

// needOf returns the index of the check that another needs, or -1.
func needOf(checks []Check, i int) int {
	for j := i - 1; j >= 0 && checks[i].Needs != ""; j-- {
		if checks[j].Pool == checks[i].Pool && checks[j].Name == checks[i].Needs {
			return j
		}
	}
	return -1
}

// running returns the checks that have not ended.
func running(checks []Check, ended []chan struct{}) (left []Check) {
	for i, c := range checks {
		select {
		case <-ended[i]:
		default:
			left = append(left, c)
		}
	}
	return left
}

// runOne makes one check within its limit.
func runOne(ctx context.Context, c Check) runtime.CheckResult {
	limited, cancel := context.WithTimeout(ctx, checkLimit)
	defer cancel()
	late, cancelLate := context.WithTimeout(context.WithoutCancel(ctx), checkLimit+returnLimit)
	defer cancelLate()
	stop := context.AfterFunc(ctx, cancelLate)
	defer stop()
	if ctx.Err() != nil {
		return runtime.CheckSkipped("interrupted")
	}
	result, err := cli.Await(late, func() (result runtime.CheckResult, err error) {
		defer func() {
			if fault := recover(); fault != nil {
				err = errFault
			}
		}()
		return c.Run(limited), nil
	})
	switch {
	case ctx.Err() != nil && (err != nil || result.Level == runtime.LevelFailed):
		return runtime.CheckSkipped("interrupted")
	case errors.Is(err, errFault):
		return runtime.CheckFailed("%v", err).WithCure("report this")
	case err != nil:
		return runtime.CheckFailed("no result within %s", checkLimit).
			WithCure("see what does not answer: a file system, a name server, or what the check is about")
	}
	return result
}

// errFault is the error of a check that panics. It quotes nothing.
var errFault = errors.New("the check cannot be made, through a fault of the program")

// outcome returns the outcome of a check, with texts that can be printed.
func outcome(c Check, result runtime.CheckResult, took time.Duration) Outcome {
	result.Message, result.Cure = printable(result.Message), printable(result.Cure)
	return Outcome{Pool: c.Pool, Name: c.Name, CheckResult: result, Duration: took}
}

// names returns the names of checks in one line.
func names(checks []Check) string {
	var all []string
	for _, c := range checks {
		name := c.Name
		if c.Pool != "" {
			name += " of pool " + report.Printable(c.Pool)
		}
		all = append(all, name)
	}
	return strings.Join(all, ", ")
}
