package server

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/cmwa-project/cmwa/cloud"
)

// Limits of bodies in bytes. A log batch has the smaller one: agents halve what
// is refused with 413.
const (
	maxLogBody = 1 << 20
	maxBody    = 4 << 20
)

// call is one request, with its sender known.
type call struct {
	*http.Request
	out http.ResponseWriter
	who principal
	now time.Time
}

// reply is an answer that is not an error. Without a body it is 204.
type reply struct {
	code int // 0 is 200, or 204 without a body
	body any
}

// empty is the body of an answer that only says yes.
type empty struct{}

// handler answers one kind of call. Its errors are problems, or the service's
// own faults.
type handler func(*call) (reply, error)

// serve makes an HTTP handler of a handler that only certain holders of tokens
// may call; with none named, anybody may.
func (s *Server) serve(handle handler, allowed ...kind) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id := requestID()
		w.Header().Set("X-Pulumi-Request-ID", id)
		c := &call{Request: r, out: w, now: time.Now()}
		answer, err := reply{}, s.admit(c, allowed)
		if err == nil {
			answer, err = handle(c)
		}
		if err != nil {
			s.writeError(c, id, err)
			return
		}
		s.writeReply(c, answer)
	})
}

// admit finds out who calls, and whether he may.
func (s *Server) admit(c *call, allowed []kind) error {
	if len(allowed) == 0 {
		return nil
	}
	token, ok := bearer(c.Request)
	if !ok {
		return refuse(http.StatusUnauthorized, "send a token, in the form \"Authorization: token VALUE\"")
	}
	err := s.store.read(c.Context(), func(t *tx) (err error) {
		c.who, err = whoIs(t, token, c.now)
		return err
	})
	switch {
	case err != nil:
		return err
	case c.who.kind == "":
		return refuse(http.StatusUnauthorized, "the token is not one of this service, or no longer")
	case !slices.Contains(allowed, c.who.kind):
		return refuse(http.StatusForbidden, "this is not for the holder of a %s token", c.who.kind)
	}
	return nil
}

func requestID() string {
	raw := make([]byte, 8)
	rand.Read(raw)
	return hex.EncodeToString(raw)
}

func (s *Server) writeReply(c *call, answer reply) {
	if answer.body == nil {
		c.out.WriteHeader(http.StatusNoContent)
		return
	}
	text, err := json.Marshal(answer.body)
	if err != nil {
		s.log.Error("write an answer", "component", "api", "path", c.URL.Path, "error", err)
		c.out.WriteHeader(http.StatusInternalServerError)
		return
	}
	if answer.code == 0 {
		answer.code = http.StatusOK
	}
	writeJSON(c.out, answer.code, text)
}

func (s *Server) writeError(c *call, id string, err error) {
	var known *problem
	if !errors.As(err, &known) {
		if c.Context().Err() == nil {
			s.log.Error("serve a call", "component", "api", "method", c.Method, "path", c.URL.Path, "request", id, "error", err)
		}
		known = &problem{http.StatusInternalServerError, "the service's own fault; its log tells more about request " + id}
	}
	text, err := json.Marshal(cloud.ErrorBody{Code: known.code, Message: known.text()})
	if err != nil {
		s.log.Error("write an error", "component", "api", "request", id, "error", err)
	}
	writeJSON(c.out, known.code, text)
}

func writeJSON(w http.ResponseWriter, code int, text []byte) {
	header := w.Header()
	header.Set("Content-Type", "application/json")
	header.Set("Cache-Control", "no-store")
	header.Set("Content-Length", strconv.Itoa(len(text)))
	w.WriteHeader(code)
	_, _ = w.Write(text) // whoever asked has gone, or has it
}

// text reads the body, which must be UTF-8.
func (c *call) text(limit int64) ([]byte, error) {
	text, err := io.ReadAll(http.MaxBytesReader(c.out, c.Body, limit))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return nil, refuse(http.StatusRequestEntityTooLarge, "the body is larger than %d bytes", limit)
	case err != nil:
		return nil, badRequest("the body broke off")
	case !utf8.Valid(text):
		return nil, badRequest("the body is not UTF-8")
	}
	return text, nil
}

// decode reads the body as one JSON value, whatever its Content-Type says: the
// runner sends none. Unknown fields are ignored.
func (c *call) decode(limit int64, into any) error {
	text, err := c.text(limit)
	if err != nil {
		return err
	}
	return decode(text, into)
}

// decode reads one JSON value. Its errors show names and places, never values,
// which may be secret.
func decode(text []byte, into any) error {
	err := json.Unmarshal(text, into)
	var syntax *json.SyntaxError
	var mismatch *json.UnmarshalTypeError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &syntax):
		return badRequest("the body is not JSON, at byte %d", syntax.Offset)
	case errors.As(err, &mismatch):
		return badRequest("field %s cannot be a JSON %s", mismatch.Field, jsonKind(mismatch.Value))
	default:
		return badRequest("the body is not of the documented form")
	}
}

// jsonKind is the kind of a JSON value without the value, which the standard
// library adds to numbers.
func jsonKind(described string) string {
	for _, kind := range []string{"number", "string", "object", "array", "bool"} {
		if len(described) >= len(kind) && described[:len(kind)] == kind {
			return kind
		}
	}
	return "value"
}

// number reads a number of the query or the path, from low to high.
func number(what, text string, low, high int64) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < low || n > high {
		return 0, badRequest("%s must be a number from %d to %d", what, low, high)
	}
	return n, nil
}
