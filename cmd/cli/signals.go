package cli

import (
	"context"
	"os"
	"os/signal"
)

// Signals returns a context that the first received signal cancels, and a context that the
// second one cancels. Third is called with each further signal. The signals are received until
// the process exits, so that a late one does not change the exit code.
func Signals(third func(os.Signal), signals ...os.Signal) (first, second context.Context) {
	first, cancelFirst := context.WithCancel(context.Background())
	second, cancelSecond := context.WithCancel(context.Background())
	received := make(chan os.Signal, 3)
	signal.Notify(received, signals...)
	go func() {
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
	return first, second
}
