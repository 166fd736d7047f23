package secret

import (
	"errors"
	"net/url"
)

// WithoutURL returns the cause of an error of net/http, without the URL of the request: its user and its query may be
// secret. It returns other errors unchanged.
func WithoutURL(err error) error {
	if inner, ok := errors.AsType[*url.Error](err); ok {
		return inner.Err
	}
	return err
}
