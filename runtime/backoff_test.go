package runtime_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
)

func TestJitter(t *testing.T) {
	seen := map[time.Duration]bool{}
	for range 1000 {
		delay := runtime.Jitter(time.Minute)
		if delay < 45*time.Second || delay > 75*time.Second {
			t.Fatalf("got %s, want 45 to 75 seconds", delay)
		}
		seen[delay.Truncate(time.Second)] = true
	}
	if len(seen) < 25 {
		t.Errorf("got %d different seconds, want most of 31", len(seen))
	}
}

func TestBackoff(t *testing.T) {
	backoff := runtime.Backoff{First: time.Second, Max: 5 * time.Second}
	times := func(ctx context.Context, wake <-chan struct{}, count int) (made []time.Duration) {
		start := time.Now()
		for delay := backoff.First; ; delay = backoff.Next(delay) {
			made = append(made, time.Since(start))
			if len(made) == count || !runtime.Sleep(ctx, wake, delay) {
				return made
			}
		}
	}
	for name, c := range map[string]struct {
		ended bool            // the context
		wake  bool            // has a token
		want  []time.Duration // since the first attempt
	}{
		"the delay doubles up to the limit": {false, false, []time.Duration{0, 1e9, 3e9, 7e9, 12e9, 17e9}},
		"a token ends one delay early":      {false, true, []time.Duration{0, 0, 2e9, 6e9}},
		"an ended context allows one call":  {true, false, []time.Duration{0}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if c.ended {
					cancel()
				}
				wake := make(chan struct{}, 1)
				if c.wake {
					wake <- struct{}{}
				}
				if made := times(ctx, wake, max(2, len(c.want))); !slices.Equal(made, c.want) {
					t.Errorf("attempts at %v, want %v", made, c.want)
				}
			})
		})
	}
}
