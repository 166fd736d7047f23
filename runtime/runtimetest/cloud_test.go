package runtimetest_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/runtimetest"
)

var _ runtime.Cloud = (*runtimetest.Cloud)(nil)
var _ runtime.Cloud = (*runtimetest.Service)(nil)

func TestCloudClaim(t *testing.T) {
	t.Run("each job is handed out once", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := runtimetest.NewCloud()
			c.Queue("a", "b")
			c.RetryAfter(time.Minute)
			for _, want := range []string{"a", "b", ""} {
				claim, err := c.Claim(t.Context())
				if err != nil || time.Until(claim.Next.At) != time.Minute || claim.Next.Reason == "" {
					t.Fatalf("claim: %+v, %v", claim, err)
				}
				if (claim.Job == nil) != (want == "") || claim.Job != nil && claim.Job.ID != want {
					t.Errorf("got %+v, want %q", claim.Job, want)
				}
			}
		})
	})

	t.Run("cancelled claim is recorded as lost", func(t *testing.T) {
		c := runtimetest.NewCloud()
		c.Queue("a")
		c.Hang(runtimetest.Claim)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := c.Claim(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want %v", err, context.Canceled)
		}
		if lost := c.Lost(); len(lost) != 1 || lost[0] != "a" {
			t.Errorf("lost %q, want a", lost)
		}
	})
}

func TestCloudNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := runtimetest.NewCloud()
		wantNext := func(next runtime.NextPoll, want time.Duration, reason string) {
			t.Helper()
			if got := max(0, time.Until(next.At)); got != want || next.Reason != reason {
				t.Errorf("the next poll is in %s (%q), want %s (%q)", got, next.Reason, want, reason)
			}
		}
		hourly := runtime.Tuning{PollingInterval: time.Hour}
		claim := func() runtime.NextPoll {
			claim, _ := c.Claim(t.Context())
			return claim.Next
		}
		wantNext(c.Tune(hourly), 0, "") // before the first poll
		wantNext(claim(), time.Hour, "")
		time.Sleep(time.Minute)
		wantNext(c.Tune(runtime.Tuning{PollingInterval: 3 * time.Minute}), 2*time.Minute, "")
		c.Hold(runtime.NextPoll{At: time.Now().Add(10 * time.Minute), Reason: "a test"})
		wantNext(c.Tune(hourly), 10*time.Minute, "a test")
		c.Fail(runtimetest.Claim, 1, errors.New("500"))
		wantNext(claim(), 10*time.Minute, "a test")
		c.Hold(runtime.NextPoll{})
		c.Queue("a")
		wantNext(claim(), 0, "") // after a job
	})
}

func TestCloudFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := runtimetest.NewCloud()
		c.Queue("a")
		down := errors.New("connection refused")
		c.Fail(runtimetest.Claim, 2, down)
		for range 2 {
			if _, err := c.Claim(t.Context()); !errors.Is(err, down) {
				t.Fatalf("got %v, want %v", err, down)
			}
		}
		release := c.Hang(runtimetest.Claim)
		begin := time.Now()
		time.AfterFunc(time.Minute, release)
		claim, err := c.Claim(t.Context())
		if err != nil || claim.Job == nil || time.Since(begin) != time.Minute {
			t.Errorf("after %v: %+v, %v; want the job after a minute", time.Since(begin), claim.Job, err)
		}
		if calls := c.Calls(runtimetest.Claim); len(calls) != 3 {
			t.Errorf("counted %d claims, want 3", len(calls))
		}
	})
}

func TestCloudReports(t *testing.T) {
	c := runtimetest.NewCloud()
	c.Queue("a")
	claim, err := c.Claim(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	send := func(offset int, status runtime.Status, lines ...string) error {
		report := runtime.Report{Offset: offset, Status: status}
		for _, line := range lines {
			report.Lines = append(report.Lines, runtime.Line{Text: line})
		}
		return c.Report(t.Context(), claim.Job, report)
	}
	for _, err := range []error{
		send(0, runtime.Running, "1", "2"), send(1, "", "2", "3"), send(3, runtime.Failed, "4"),
	} {
		if err != nil {
			t.Error(err)
		}
	}
	if status, log := c.Step("a", 0); status != runtime.Failed || log != "1234" {
		t.Errorf("step 0 is %s with %q, want failed with 1234", status, log)
	}
	c.SetJobStatus("a", runtime.Gone)
	if err := send(4, runtime.Failed); !errors.Is(err, runtime.ErrGone) {
		t.Errorf("a report of a job that the service no longer has returns %v, want %v", err, runtime.ErrGone)
	}
	if status, err := c.JobStatus(t.Context(), claim.Job); status != runtime.Gone || err != nil {
		t.Errorf("the status is %s (%v), want gone", status, err)
	}
}
