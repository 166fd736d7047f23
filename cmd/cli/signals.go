package cli

import (
	"context"
	"os"
	"os/signal"
)

// Signals returns a context that the first of the signals cancels, and one that
// the second cancels. Further ones have no effect until stop is called, which also
// cancels both contexts.
func Signals(signals ...os.Signal) (first, second context.Context, stop func()) {
	first, cancelFirst := context.WithCancel(context.Background())
	second, cancelSecond := context.WithCancel(context.Background())
	received := make(chan os.Signal, 2)
	signal.Notify(received, signals...)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range received {
			if first.Err() != nil {
				cancelSecond()
			}
			cancelFirst()
		}
	}()
	return first, second, func() {
		signal.Stop(received)
		close(received)
		<-done
		cancelSecond()
		cancelFirst()
	}
}
