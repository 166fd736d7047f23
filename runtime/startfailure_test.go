package runtime

import (
	"errors"
	"fmt"
	"testing"
)

func TestFailureOf(t *testing.T) {
	full := FailureUnschedulable.Wrap(errors.New("no node"))
	for name, c := range map[string]struct {
		err  error
		want StartFailure
	}{
		"unknown error":                     {errors.New("no space left on device"), FailureInstance},
		"wrapped reason":                    {fmt.Errorf("start the Pod: %w", full), FailureUnschedulable},
		"first reason wins":                 {FailureImage.Wrap(full), FailureUnschedulable},
		"lost connection during a pull":     {FailureImage.Wrap(ErrConnectionLost), FailureConnection},
		"refused credentials":               {FailureImage.Wrap(ErrDenied), FailureDenied},
		"image that the job selects":        {NewJobFault("no such image"), FailureImage},
		"image that the settings select":    {FailureImage.Wrap(errors.New("no such image")), FailureImage},
		"reason beside an error of cleanup": {errors.Join(full, errors.New("cannot remove")), FailureUnschedulable},
	} {
		if got := FailureOf(c.err); got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
	if err := FailureImage.Wrap(nil); err != nil {
		t.Errorf("Wrap of no error returns %v", err)
	}
	if !errors.Is(FailureImage.Wrap(ErrGone), ErrGone) || full.Error() != "no node" {
		t.Error("Wrap changes the error")
	}
}
