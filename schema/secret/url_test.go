package secret

import (
	"errors"
	"fmt"
	"net/url"
	"testing"
)

func TestWithoutURL(t *testing.T) {
	refused := errors.New("connection refused")
	call := &url.Error{Op: "Get", URL: "https://tr4ce@example.com/?key=tr4ce", Err: refused}
	for _, err := range []error{refused, call, fmt.Errorf("call: %w", call)} {
		if got := WithoutURL(err); got.Error() != refused.Error() {
			t.Errorf("%v becomes %v", err, got)
		}
	}
	if err := WithoutURL(nil); err != nil {
		t.Errorf("no error becomes %v", err)
	}
}
