package server

import (
	"fmt"
	"net/http"
)

// problem is an error for the caller: a status and what to do. Every other
// error is the service's own, and shows to the caller as no more than that.
type problem struct {
	code    int
	message string
}

func (p *problem) Error() string { return p.message }

// text is the message as Pulumi Cloud writes them, with the status in words
// before it; the CLI compares some of them letter by letter.
func (p *problem) text() string { return http.StatusText(p.code) + ": " + p.message }

func refuse(code int, format string, args ...any) error {
	return &problem{code, fmt.Sprintf(format, args...)}
}

func badRequest(format string, args ...any) error {
	return refuse(http.StatusBadRequest, format, args...)
}
func notFound(format string, args ...any) error {
	return refuse(http.StatusNotFound, format, args...)
}
func conflict(format string, args ...any) error {
	return refuse(http.StatusConflict, format, args...)
}
