package control

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
)

// Limits of the server.
const (
	connectionLimit = 5 * time.Second // for one request and its response
	planLimit       = time.Minute     // for a plan, which takes seconds for a thousand pools
	maxConnections  = 8               // at a time
	acceptRetry     = time.Second     // after a failure to accept, such as too many open files
)

// Server serves the socket of one agent.
type Server struct {
	listener *net.UnixListener
	path     string
	log      *slog.Logger
}

// Listen opens the socket in the directory of an agent. The agent must have locked the directory.
func Listen(directory string, log *slog.Logger) (*Server, error) {
	if directory == "" {
		return nil, errNoDirectory
	}
	listener, err := listen(directory)
	if err != nil {
		return nil, err
	}
	return &Server{listener, filepath.Join(directory, socketName), log.With("component", "control")}, nil
}

// errNoDirectory is the error of an agent without a state directory, such as one in a Pod.
var errNoDirectory = errors.New("the agent has no state directory")

// Open opens the socket of an agent, and returns a function that serves the socket until
// ctx ends. If Open cannot open the socket, it logs why, and the function does nothing: the
// agent works without a socket. The log line is a warning only if the agent has a directory. Warning
// is a text for people; it is empty if the socket is open.
func Open(agent Agent, log *slog.Logger) (serve func(context.Context) error, warning string) {
	server, err := Listen(agent.Directory, log)
	if err != nil {
		level := slog.LevelWarn
		if errors.Is(err, errNoDirectory) {
			level = slog.LevelInfo
		}
		const message = "no control socket: cmwa drain, pause, resume, plan --live, and status without --url do not " +
			"work with this agent"
		log.Log(context.Background(), level, message, "error", err)
		return func(context.Context) error { return nil }, message + ": " + err.Error()
	}
	return func(ctx context.Context) error { return server.Serve(ctx, agent.Handle) }, ""
}

// Serve serves requests until ctx ends, and then removes the socket. Its error is always
// nil. Serve calls handle for one valid request at a time, apart from plans.
func (s *Server) Serve(ctx context.Context, handle func(Request) Response) error {
	var connections sync.WaitGroup
	defer connections.Wait()
	defer os.Remove(s.path)
	stop := context.AfterFunc(ctx, func() { _ = s.listener.Close() })
	defer stop()

	var one sync.Mutex
	free := make(chan struct{}, maxConnections)
	for {
		free <- struct{}{}
		conn, err := s.listener.AcceptUnix()
		if ctx.Err() != nil {
			if err == nil {
				_ = conn.Close()
			}
			return nil
		}
		if err != nil {
			<-free
			s.log.Debug("cannot accept a connection", "error", err, "retry_in", acceptRetry)
			runtime.Sleep(ctx, nil, acceptRetry)
			continue
		}
		_ = conn.SetDeadline(time.Now().Add(connectionLimit))
		connections.Go(func() {
			defer func() { <-free }()
			defer conn.Close()
			stop := context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Now()) })
			defer stop()
			s.serve(conn, func(request Request) Response {
				if request.Command == Plan { // it takes long and changes nothing
					_ = conn.SetDeadline(time.Now().Add(planLimit))
					return handle(request)
				}
				one.Lock()
				defer one.Unlock()
				return handle(request)
			})
		})
	}
}

func (s *Server) serve(conn *net.UnixConn, handle func(Request) Response) {
	response := Response{Pools: []Pool{}}
	line, err := readLine(conn, maxRequest)
	if err == nil {
		err = checkPeer(conn)
	}
	var request Request
	if err == nil {
		request, err = DecodeRequest(line)
	}
	if err != nil {
		s.log.Warn("control request refused", "error", err)
		response.Error = err.Error()
	} else {
		response = handle(request)
	}
	response.Version = Version
	text, err := json.Marshal(response)
	if err == nil {
		_, err = conn.Write(append(text, '\n'))
	}
	if err != nil {
		s.log.Debug("cannot respond to a control request", "error", err)
	}
}
