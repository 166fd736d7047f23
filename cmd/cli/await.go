package cli

import "context"

// Await returns the result of f. If ctx ends first, Await returns the cause of ctx, and
// f keeps running. Await is for reads of standard input and of pipes, which nothing can
// interrupt.
func Await[T any](ctx context.Context, f func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		value, err := f()
		done <- result{value, err}
	}()
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
		var none T
		return none, context.Cause(ctx)
	}
}
