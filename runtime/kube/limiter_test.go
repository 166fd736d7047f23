package kube

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cmwa-project/cmwa/runtime/kube/kubetest"
)

func TestLimiter(t *testing.T) {
	// takes returns how long a number of concurrent creates wait.
	takes := func(l *limiter, creates int) time.Duration {
		started := time.Now()
		var waiting sync.WaitGroup
		for range creates {
			waiting.Go(func() { _ = l.Wait(asCreate(context.Background())) })
		}
		waiting.Wait()
		return time.Since(started).Round(time.Second)
	}

	inBubble(t, "default, and the largest rate of the pools", func(t *testing.T) {
		l, first, second := newLimiter(), new(Executor), new(Executor)
		const burst, more = burstFactor * DefaultQPS, 10 * DefaultQPS
		if got := takes(l, burst+more); got != 10*time.Second {
			t.Errorf("with the default: %s, want 10s", got)
		}
		l.set(first, 100)
		l.set(second, 0)
		if got := takes(l, 400+500); got != 5*time.Second {
			t.Errorf("with 100 requests a second: %s, want 5s", got)
		}
		l.remove(first)
		if got := takes(l, burst+more); got != 10*time.Second {
			t.Errorf("after the end of the pool: %s, want 10s", got)
		}
	})

	inBubble(t, "other requests do not wait for creates", func(t *testing.T) {
		l := newLimiter()
		go takes(l, 1000)
		synctest.Wait()
		started := time.Now()
		if err := l.Wait(t.Context()); err != nil || time.Since(started) > 0 {
			t.Errorf("got %v after %s, want no wait", err, time.Since(started))
		}
		time.Sleep(time.Minute)
	})

	inBubble(t, "request that would wait too long is not sent", func(t *testing.T) {
		l := newLimiter()
		go takes(l, 1000)
		synctest.Wait()
		ctx, cancel := context.WithTimeout(asCreate(t.Context()), 5*time.Second)
		defer cancel()
		started := time.Now()
		if err := l.Wait(ctx); !errors.Is(err, errThrottled) || time.Since(started) > 0 {
			t.Errorf("got %v after %s, want errThrottled at once", err, time.Since(started))
		}
		cancel()
		if err := l.Wait(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want the error of the context", err)
		}
		time.Sleep(time.Minute)
	})
}

// TestCheckThrottled checks that a full queue is no API server without a response.
func TestCheckThrottled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeClusterOn(t, kubetest.NewAPIWithoutNetwork(t), succeed)
		e, job := s.executor(t), testJob()
		job.Tuning.Instance.Kubernetes.QPS = 1
		if err := e.Check(t.Context(), job.Tuning); err != nil {
			t.Fatal(err)
		}
		for range 100 {
			go func() { _ = e.client.limits.Wait(asCreate(t.Context())) }()
		}
		synctest.Wait()
		e.dryRuns.validUntil = time.Time{}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		const want = "create a Pod as a dry run: more than 1 requests a second to the Kubernetes API server at " +
			"http://fake.invalid: raise kubernetes.qps"
		if err := e.Check(ctx, job.Tuning); err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
		time.Sleep(2 * time.Minute)
	})
}
