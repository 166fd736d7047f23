package server

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/cmwa-project/cmwa/cloud"

	"github.com/cmwa-project/cmwa/cloud/server/objects"
	"github.com/cmwa-project/cmwa/cloud/server/store"
)

// Limits of the bodies of requests, in bytes after decompression. The limit for log batches is
// smaller, because agents halve a batch that is refused with 413.
const (
	maxSmallBody = 64 << 10 // tokens, pools and tags
	maxSettings  = 1 << 20
	maxLogBody   = 1 << 20
	maxBody      = 4 << 20
	maxEventBody = 16 << 20
	maxStateBody = 512 << 20 // states and journals

	maxSentBody = 50 << 20 // before decompression
	largeBody   = 16 << 20 // from this size on, one call at a time: a body of 500 KB can become 512 MiB
)

// turnLimit is how long a call with a large body waits for another one.
const turnLimit = 30 * time.Second

// call is one request and its sender.
type call struct {
	*http.Request
	out    http.ResponseWriter
	caller sender
	now    time.Time
	turns  chan struct{} // contains an element while a call has a large body
	turn   bool          // this call has put it there
}

// reply is the response to a call that succeeded. Without a body its status is 204.
type reply struct {
	code int // status with a body; 0 means 200
	body any
}

// empty is the body of a response without data.
type empty struct{}

// handler answers one kind of call. If the caller made an error, the returned error is a
// *problem. Any other returned error is a fault of the service.
type handler func(*call) (reply, error)

// serve returns an HTTP handler for calls with a token that allows an action.
func (s *Server) serve(handle handler, do action) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id := requestID()
		w.Header().Set("X-Pulumi-Request-ID", id)
		c := &call{Request: r, out: w, now: time.Now(), turns: s.largeBodies}
		defer c.endTurn()
		answer, err := reply{}, s.authenticate(c, do)
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

// authenticate identifies the caller by the token, and checks that the token allows an action.
func (s *Server) authenticate(c *call, do action) error {
	if do == answerAnyone {
		return nil
	}
	if do == holdUpdate {
		return s.authenticateLease(c)
	}
	token, ok := bearer(c.Request, cloud.AuthScheme)
	if !ok {
		return refuse(http.StatusUnauthorized, "send a token in the form \"Authorization: token VALUE\"")
	}
	err := s.db.Read(c.Context(), func(t *store.Tx) (err error) {
		c.caller, err = tokenHolder(t, token, c.now)
		return err
	})
	switch {
	case err != nil:
		return err
	case c.caller.kind == "":
		return s.refuseToken(c, do)
	}
	s.recordUse(c)
	return c.authorize(do)
}

// refuseToken returns the response to an unknown token. Agents and runners get no other status for too many failed
// logins, because they treat a 401 in a way of their own.
func (s *Server) refuseToken(c *call, do action) error {
	switch do {
	case serveAgent, holdLease, reportJob:
	default:
		if err := s.logins.add(c.RemoteAddr, c.now); err != nil {
			return err
		}
	}
	return refuse(http.StatusUnauthorized, "the token is unknown or has expired")
}

// authenticateLease identifies the caller by the token of an update's lease, which has a scheme of its own. An unknown
// token is that of a lease that has expired.
func (s *Server) authenticateLease(c *call) error {
	token, ok := bearer(c.Request, updateScheme)
	if !ok {
		return refuse(http.StatusUnauthorized, "send the token of the update in the form \"Authorization: %s VALUE\"",
			updateScheme)
	}
	err := s.db.Read(c.Context(), func(t *store.Tx) error {
		update, of, found, err := t.UpdateOfLease(hash(token))
		if err == nil && !found {
			return leaseLost()
		}
		c.caller = sender{principal: principal{updateToken, update}, organization: of.Organization, stack: of.Path()}
		return err
	})
	if err == nil && c.authorize(holdUpdate) != nil {
		return leaseLost() // in the path of another stack: a CLI gives up only after a 403
	}
	return err
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
	text, ok := answer.body.(rawJSON)
	var err error
	if !ok {
		text, err = json.Marshal(answer.body)
	}
	if err != nil {
		s.log.Error("cannot encode the response", "component", "api", "path", c.URL.Path, "error", err)
		c.out.WriteHeader(http.StatusInternalServerError)
		return
	}
	if answer.code == 0 {
		answer.code = http.StatusOK
	}
	c.writeJSON(answer.code, text)
}

func (s *Server) writeError(c *call, id string, err error) {
	var known *problem
	if !errors.As(err, &known) {
		if c.Context().Err() == nil {
			s.log.Error("request failed", "component", "api", "method", c.Method, "path", c.URL.Path,
				"request", id, "error", err)
		}
		known = &problem{code: http.StatusInternalServerError,
			message: "the service failed: search its log for request " + id}
	}
	text, err := json.Marshal(cloud.ErrorBody{
		Code: known.code, Message: known.text(), NextOffset: known.nextOffset,
	})
	if err != nil {
		s.log.Error("cannot encode the error", "component", "api", "request", id, "error", err)
	}
	if known.retryAfter != "" {
		c.out.Header().Set("Retry-After", known.retryAfter)
	}
	c.writeJSON(known.code, text)
}

// minCompressed is the size in bytes from which responses are compressed. Smaller ones fit into few packets.
const minCompressed = 4 << 10

func (c *call) writeJSON(code int, text []byte) {
	header := c.out.Header()
	header.Set("Content-Type", "application/json")
	header.Set("Cache-Control", "no-store")
	if len(text) >= minCompressed && acceptsGzip(c.Header.Get("Accept-Encoding")) {
		header.Set("Content-Encoding", "gzip")
		text = objects.Pack(text)
	}
	header.Set("Content-Length", strconv.Itoa(len(text)))
	c.out.WriteHeader(code)
	_, _ = c.out.Write(text) // fails only if the client has disconnected
}

// acceptsGzip reports whether a header Accept-Encoding allows gzip, such as "gzip, deflate;q=0.5".
func acceptsGzip(header string) bool {
	for one := range strings.SplitSeq(header, ",") {
		name, quality, _ := strings.Cut(one, ";")
		if strings.TrimSpace(name) == "gzip" {
			return !strings.HasPrefix(strings.TrimSpace(quality), "q=0") || strings.Contains(quality, "q=0.")
		}
	}
	return false
}

// text returns the body, which must be UTF-8. It decompresses a body with the Content-Encoding gzip, and stops at the
// limit. The limit is for the decompressed body, in bytes.
func (c *call) text(limit int64) ([]byte, error) {
	body := http.MaxBytesReader(c.out, c.Body, min(limit, maxSentBody))
	switch encoding := strings.ToLower(c.Header.Get("Content-Encoding")); encoding {
	case "", "identity":
	case "gzip":
		unpacked, err := gzip.NewReader(body)
		if err != nil {
			return nil, badRequest("the Content-Encoding is gzip and the body is not")
		}
		body = http.MaxBytesReader(c.out, unpacked, limit)
	default:
		return nil, refuse(http.StatusUnsupportedMediaType,
			"send the body with the Content-Encoding gzip or without one")
	}
	var content bytes.Buffer
	_, err := content.ReadFrom(io.LimitReader(body, largeBody))
	if err == nil && content.Len() == largeBody {
		if err := c.waitForTurn(); err != nil {
			return nil, err
		}
		_, err = content.ReadFrom(body)
	}
	text := content.Bytes()
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return nil, refuse(http.StatusRequestEntityTooLarge, "the body is larger than %d bytes", large.Limit)
	case errors.Is(err, gzip.ErrChecksum), errors.Is(err, gzip.ErrHeader), errors.As(err, new(flate.CorruptInputError)):
		return nil, badRequest("the Content-Encoding is gzip and the body is not")
	case err != nil:
		return nil, badRequest("the body is incomplete")
	case !utf8.Valid(text):
		return nil, badRequest("the body is not UTF-8")
	}
	return text, nil
}

// waitForTurn waits until no other call has a large body. The turn ends with the call.
func (c *call) waitForTurn() error {
	if c.turn {
		return nil
	}
	select {
	case c.turns <- struct{}{}:
		c.turn = true
		return nil
	case <-c.Context().Done():
		return badRequest("the body is incomplete")
	case <-time.After(turnLimit):
		c.out.Header().Set("Retry-After", "10")
		return refuse(http.StatusServiceUnavailable, "the service handles other large bodies: try again")
	}
}

func (c *call) endTurn() {
	if c.turn {
		<-c.turns
	}
}

// decode reads the body as one JSON value, regardless of its Content-Type, which the
// runner does not send. Unknown fields are ignored.
func (c *call) decode(limit int64, into any) error {
	text, err := c.text(limit)
	if err != nil {
		return err
	}
	return decode(text, into)
}

// decode reads one JSON value. Its errors contain names and positions. They contain no
// values, which may be secret.
func decode(text []byte, into any) error {
	if err := checkDepth(text); err != nil {
		return err
	}
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
		return badRequest("the body does not have the documented form")
	}
}

// maxDepth limits how deep objects and lists are nested in a body. States have the limit of encoding/json, which is
// 10,000, because a state that is refused is lost.
const maxDepth = 100

// checkDepth refuses a JSON value that is nested too deeply. It does not check anything else.
func checkDepth(text []byte) error {
	depth, inString := 0, false
	for i := 0; i < len(text); i++ {
		switch b := text[i]; {
		case inString && b == '\\':
			i++ // the next byte cannot end the string
		case b == '"':
			inString = !inString
		case inString:
		case b == '{' || b == '[':
			if depth++; depth > maxDepth {
				return badRequest("the body is nested more than %d levels deep", maxDepth)
			}
		case b == '}' || b == ']':
			depth--
		}
	}
	return nil
}

// jsonKind returns the kind of a JSON value. Described is the Value of a
// [json.UnmarshalTypeError]: it begins with the kind, and can also contain a number.
func jsonKind(described string) string {
	for _, kind := range []string{"number", "string", "object", "array", "bool"} {
		if len(described) >= len(kind) && described[:len(kind)] == kind {
			return kind
		}
	}
	return "value"
}

// parseNumber reads a number from low to high in the query or the path.
func parseNumber(name, text string, low, high int64) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < low || n > high {
		return 0, badRequest("%s must be a number from %d to %d", name, low, high)
	}
	return n, nil
}

// parsePage reads the numbers of the page and of its entries from a query. The first page is 1, and
// lowest is the lowest number that is allowed.
func parsePage(query url.Values, lowest int64) (page, size int64, err error) {
	page, size = 1, 10
	if query.Has("page") {
		if page, err = parseNumber("page", query.Get("page"), lowest, 1<<31); err != nil {
			return 0, 0, err
		}
	}
	if query.Has("pageSize") {
		if size, err = parseNumber("pageSize", query.Get("pageSize"), 1, 100); err != nil {
			return 0, 0, err
		}
	}
	return page, size, nil
}

// problem is an error of the caller, with a status. The details of other errors are not
// sent to the caller.
type problem struct {
	code       int
	message    string
	nextOffset *int   // see [cloud.ErrorBody]
	retryAfter string // header Retry-After, in seconds; empty for none
	oauth      string // error code of RFC 6749, section 5.2; only of an exchange of tokens
}

func (p *problem) Error() string { return p.message }

// text returns the message in the form of Pulumi Cloud, which begins with the name of
// the status. Pulumi's CLI compares some messages exactly.
func (p *problem) text() string { return http.StatusText(p.code) + ": " + p.message }

func refuse(code int, format string, args ...any) error {
	return &problem{code: code, message: fmt.Sprintf(format, args...)}
}

// wrongOffset refuses lines at a wrong offset. Lines is the number of stored lines of the
// step, and so the right offset.
func wrongOffset(lines int, format string, args ...any) error {
	return &problem{code: http.StatusBadRequest, message: fmt.Sprintf(format, args...), nextOffset: &lines}
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
