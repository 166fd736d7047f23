package cli

import (
	"context"
	"os"
	"os/signal"
)

// Signals returns a context that the first received signal cancels, and a context that the
// second one cancels. Third is called with each further signal. Stop cancels both contexts
// and restores the default effect of the signals.
func Signals(third func(os.Signal), signals ...os.Signal) (first, second context.Context, stop func()) {
	first, cancelFirst := context.WithCancel(context.Background())
	second, cancelSecond := context.WithCancel(context.Background())
	received := make(chan os.Signal, 3)
	signal.Notify(received, signals...)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for s := range received {
			switch {
			case first.Err() == nil:
				cancelFirst()
			case second.Err() == nil:
				cancelSecond()
			default:
				third(s)
			}
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
