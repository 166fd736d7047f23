package doctor

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/runtime/selfcheck"
	"github.com/cmwa-project/cmwa/schema/printable"
)

// Limits of a run.
const (
	checkLimit    = 30 * time.Second // of one check
	returnLimit   = 2 * time.Second  // for a check to return after its timeout
	slowAfter     = 2 * time.Second  // time without an outcome after which Waiting is called
	maxConcurrent = 16               // concurrent checks
)

// Check is a check of one pool, or of the agent.
type Check struct {
	Pool string // name of the pool; empty for the agent
	selfcheck.Check
	duration time.Duration // of a check that ran before Run
}

// Outcome is the result of a check, with sanitized texts.
type Outcome struct {
	Pool string
	Name string
	selfcheck.Result
	Duration time.Duration // 0 for a check that did not run
}

// Reporter receives the results of a run. Its functions are not called concurrently.
type Reporter struct {
	// Outcome is called with each outcome, in the order of the checks.
	Outcome func(Outcome)
	// Waiting is called with the checks that have not ended, if Outcome was not called for
	// two seconds. Then it is called again only after the next Outcome.
	Waiting func([]Check)
}

// Run runs the checks, and reports whether no check has failed. A check that does not
// return within its timeout has failed; its goroutine remains until the process ends. When
// ctx ends, the remaining checks are skipped, and Run returns false.
func Run(ctx context.Context, checks []Check, to Reporter) bool {
	// Start all checks. A check waits for the check that it needs.
	outcomes, ended := make([]Outcome, len(checks)), make([]chan struct{}, len(checks))
	slots := make(chan struct{}, maxConcurrent)
	for i := range checks {
		ended[i] = make(chan struct{})
		need := needOf(checks, i)
		go func() {
			defer close(ended[i])
			if need >= 0 {
				<-ended[need]
				if level := outcomes[need].Level; level == selfcheck.LevelFailed || level == selfcheck.LevelSkipped {
					result := selfcheck.Skipped("not checked, because %s did not pass", checks[need].Name)
					outcomes[i] = outcome(checks[i], result, 0)
					return
				}
			}
			slots <- struct{}{}
			defer func() { <-slots }()
			started := time.Now()
			result := runOne(ctx, checks[i])
			outcomes[i] = outcome(checks[i], result, checks[i].duration+time.Since(started))
		}()
	}

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
		good = good && outcomes[i].Level != selfcheck.LevelFailed
		to.Outcome(outcomes[i])
		slow.Reset(slowAfter)
	}
	return good && ctx.Err() == nil
}

// needOf returns the index of the check that check i needs, or -1.
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

func runOne(ctx context.Context, c Check) selfcheck.Result {
	limited, cancel := context.WithTimeout(ctx, checkLimit)
	defer cancel()
	late, cancelLate := context.WithTimeout(context.WithoutCancel(ctx), checkLimit+returnLimit)
	defer cancelLate()
	stop := context.AfterFunc(ctx, cancelLate)
	defer stop()
	if ctx.Err() != nil {
		return selfcheck.Skipped("interrupted")
	}
	result, err := cli.Await(late, func() (result selfcheck.Result, err error) {
		defer func() {
			if fault := recover(); fault != nil {
				err = errFault
			}
		}()
		return c.Run(limited), nil
	})

	switch {
	case ctx.Err() != nil && (err != nil || result.Level == selfcheck.LevelFailed):
		return selfcheck.Skipped("interrupted")
	case errors.Is(err, errFault):
		return selfcheck.Failed("%v", err).WithHint("report this error")
	case err != nil:
		return selfcheck.Failed("no result within %s", checkLimit).
			WithHint("find out what does not respond: a file system, a name server, " +
				"or the server that this check calls")
	}
	return result
}

// errFault is the error of a check that panics. It does not contain the panic value.
var errFault = errors.New("the check failed because of a bug in the program")

// outcome returns the outcome of a check, with texts that can be printed.
func outcome(c Check, result selfcheck.Result, took time.Duration) Outcome {
	result.Message, result.Hint = shown(result.Message), shown(result.Hint)
	return Outcome{Pool: c.Pool, Name: c.Name, Result: result, Duration: took}
}

func names(checks []Check) string {
	var all []string
	for _, c := range checks {
		name := c.Name
		if c.Pool != "" {
			name += " of pool " + printable.Text(c.Pool)
		}
		all = append(all, name)
	}
	return strings.Join(all, ", ")
}
