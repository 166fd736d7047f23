package runtime

import "errors"

// StartFailure is why a job could not be started. The values are few, because they are labels of a
// metric; the text of the error has the details.
type StartFailure string

// The reasons of failed starts.
const (
	FailureService       StartFailure = "service"       // no definition, or no accepted heartbeat
	FailureImage         StartFailure = "image"         // the image cannot be pulled or does not fit
	FailureUnschedulable StartFailure = "unschedulable" // no node had room for the Pod
	FailureDenied        StartFailure = "denied"        // the engine refused the agent's credentials or rights
	FailureConnection    StartFailure = "connection"    // the engine did not respond
	FailureRunner        StartFailure = "runner"        // the instance ended before the first step
	FailureInstance      StartFailure = "instance"      // any other: the instance was not created or started
)

// Wrap returns the error of a failed start with this reason, or err itself if it has a reason
// already. It does not change the text.
func (f StartFailure) Wrap(err error) error {
	if err == nil || FailureOf(err) != FailureInstance {
		return err
	}
	return startError{err, f}
}

type startError struct {
	error
	reason StartFailure
}

func (e startError) Unwrap() error { return e.error }

// FailureOf returns the reason of a failed start.
func FailureOf(err error) StartFailure {
	switch marked, ok := errors.AsType[startError](err); {
	case ok:
		return marked.reason
	case errors.Is(err, ErrConnectionLost):
		return FailureConnection
	case errors.Is(err, ErrDenied):
		return FailureDenied
	case errors.Is(err, ErrJobFault):
		return FailureImage
	}
	return FailureInstance
}
