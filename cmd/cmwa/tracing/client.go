package tracing

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	spans "go.opentelemetry.io/proto/otlp/trace/v1"
	"golang.org/x/net/http/httpguts"
	"google.golang.org/protobuf/proto"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/schema/secret"
)

const (
	tracesPath = "/v1/traces"
	grpcPath   = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"

	maxResponse = 64 << 10 // bytes of a response that are read, so that its connection can be used again
)

// errRetry is wrapped by an error after which the same spans may be sent again.
var errRetry = errors.New("temporary failure")

// retries has the delays between two attempts to send the same spans. The caller limits all of them together: to 30 s,
// or to OTEL_BSP_EXPORT_TIMEOUT.
var retries = runtime.Backoff{First: time.Second, Max: 8 * time.Second}

// client is an otlptrace.Client. It sends spans with the OpenTelemetry protocol, over HTTP or as a gRPC call
// (https://opentelemetry.io/docs/specs/otlp/, https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md).
type client struct {
	url     string
	grpc    bool
	headers http.Header
	http    *http.Client
}

// newClient returns the client that the variables configure.
func newClient(setting func(name string) (text, variable string)) (*client, error) {
	c := &client{headers: http.Header{}}
	protocol, variable := setting("PROTOCOL")
	switch protocol {
	case "", "http/protobuf":
	case "grpc":
		c.grpc = true
	default:
		return nil, fmt.Errorf("%s is %q: set it to http/protobuf or grpc", variable, protocol)
	}

	text, variable := setting("ENDPOINT")
	endpoint, err := url.Parse(text)
	if err != nil || endpoint.Scheme != "http" && endpoint.Scheme != "https" || endpoint.Host == "" {
		// The value may contain a password.
		return nil, fmt.Errorf("%s is no URL such as http://collector.example:4318", variable)
	}
	switch {
	case c.grpc:
		endpoint.Path = grpcPath
	case variable == prefix+"ENDPOINT":
		endpoint = endpoint.JoinPath(tracesPath)
	}
	c.url = endpoint.String()

	text, variable = setting("HEADERS")
	for pair := range strings.SplitSeq(text, ",") {
		if strings.TrimSpace(pair) == "" {
			continue
		}
		name, value, ok := strings.Cut(pair, "=")
		name = strings.TrimSpace(name)
		value, err := url.PathUnescape(strings.TrimSpace(value))
		if !ok || err != nil || !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(value) {
			return nil, fmt.Errorf("%s must be a list such as name=value,name=value", variable) // without its secrets
		}
		c.headers.Add(name, value)
	}

	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.ForceAttemptHTTP2 = true
	if c.grpc {
		transport.Protocols = new(http.Protocols)
		transport.Protocols.SetHTTP2(true)
		transport.Protocols.SetUnencryptedHTTP2(true)
	}
	if file, variable := setting("CERTIFICATE"); file != "" {
		certificates, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", variable, err)
		}
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(certificates) {
			return nil, fmt.Errorf("%s: %s has no PEM certificate", variable, file)
		}
		transport.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	}
	c.http = &http.Client{
		Transport: transport,
		CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse // another host must not get the headers
		},
	}
	return c, nil
}

// Start does nothing: the first spans open a connection.
func (*client) Start(context.Context) error { return nil }

// Stop closes the connections.
func (c *client) Stop(context.Context) error {
	c.http.CloseIdleConnections()
	return nil
}

// UploadTraces sends spans, and sends them again after a temporary failure, until ctx ends.
func (c *client) UploadTraces(ctx context.Context, all []*spans.ResourceSpans) error {
	message, err := proto.Marshal(&spans.TracesData{ResourceSpans: all}) // as an ExportTraceServiceRequest is encoded
	if err != nil {
		return err
	}
	for delay := retries.First; ; delay = retries.Next(delay) {
		err := c.send(ctx, message)
		if !errors.Is(err, errRetry) || !runtime.Sleep(ctx, nil, delay) {
			return err
		}
	}
}

func (c *client) send(ctx context.Context, message []byte) error {
	header := c.headers.Clone()
	header.Set("Content-Type", "application/x-protobuf")
	if c.grpc { // the message is not compressed (0), and its length stands before it
		header.Set("Content-Type", "application/grpc")
		header.Set("Te", "trailers")
		message = append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader(message))
	if err != nil {
		return secret.WithoutURL(err)
	}
	request.Header = header
	response, err := c.http.Do(request)
	if err != nil {
		return fmt.Errorf("%w: %w", errRetry, secret.WithoutURL(err))
	}
	defer response.Body.Close()
	_, err = io.Copy(io.Discard, io.LimitReader(response.Body, maxResponse))

	// A gRPC response has its status in the trailers, or in the headers if it has nothing else.
	status, grpcErr := strconv.ParseUint(response.Trailer.Get("Grpc-Status")+response.Header.Get("Grpc-Status"), 10, 8)
	switch code := response.StatusCode; {
	case code == 429, code == 502, code == 503, code == 504:
		return fmt.Errorf("%w: the collector responds with status %d", errRetry, code)
	case code/100 != 2:
		return fmt.Errorf("the collector responds with status %d", code)
	case err != nil:
		return fmt.Errorf("%w: %w", errRetry, err)
	case !c.grpc, grpcErr == nil && status == 0:
		return nil
	case grpcErr != nil:
		return errors.New("the collector responds without a gRPC status: check the endpoint and the protocol")
	}
	switch status {
	case 1, 4, 10, 11, 14, 15: // OTLP, "Failures"
		return fmt.Errorf("%w: the collector responds with gRPC status %d", errRetry, status)
	}
	return fmt.Errorf("the collector responds with gRPC status %d", status)
}
