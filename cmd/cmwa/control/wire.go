package control

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"

	"github.com/cmwa-project/cmwa/schema/position"
)

// Version is the version of the protocol.
const Version = 1

// Limits of the protocol.
const (
	maxRequest  = 32<<10 + 4*position.MaxFile/3 // bytes: a File, encoded in base64
	maxResponse = 16 << 20                      // bytes: a plan for a thousand pools
)

// Command is the command of a request.
type Command string

// The commands.
const (
	Show   Command = "show"   // changes nothing
	Status Command = "status" // changes nothing
	Plan   Command = "plan"   // changes nothing: what a reload to a file would do
	Drain  Command = "drain"  // what the first TERM does
	Pause  Command = "pause"  // one pool
	Resume Command = "resume" // one pool
	Stop   Command = "stop"   // one job
)

// Request is a request of a client.
type Request struct {
	Version int     `json:"version"`
	Command Command `json:"command"`
	Pool    string  `json:"pool,omitempty"` // name, of pause and resume
	Job     string  `json:"job,omitempty"`  // of stop: the id of the job or its deployment, or the beginning of one
	File    *File   `json:"file,omitempty"` // of plan
}

// File is a configuration file.
type File struct {
	Path    string      `json:"path"` // absolute
	Content []byte      `json:"content"`
	Mode    fs.FileMode `json:"mode,omitempty"` // permissions; 0 if unknown
}

// Response is the response of an agent.
type Response struct {
	Version int       `json:"version"`
	Error   string    `json:"error,omitempty"`   // why nothing was done; for people
	Warning string    `json:"warning,omitempty"` // for people
	Changed bool      `json:"changed,omitempty"` // the request had an effect
	Started time.Time `json:"started"`           // of the agent
	StopAt  time.Time `json:"stopAt,omitzero"`   // while draining: when running jobs are stopped
	Pools   []Pool    `json:"pools"`             // a pool and its replacement have the same name

	// Job is the stack of the job that stop has stopped, for people.
	Job string `json:"job,omitempty"`

	// Result is what Agent.Status or Agent.Plan returned, for these commands.
	Result json.RawMessage `json:"result,omitempty"`
}

// Pool is one pool of an agent.
type Pool struct {
	Name string `json:"name"`
	Jobs int    `json:"jobs"`
}

// Jobs returns the number of running jobs of the pools with a name, or of all pools.
func (r Response) Jobs(name string) (jobs int) {
	for _, p := range r.Pools {
		if name == "" || p.Name == name {
			jobs += p.Jobs
		}
	}
	return jobs
}

// errTooLong means that a line exceeds its limit.
var errTooLong = errors.New("the line is too long")

// readLine reads one line of at most limit bytes, and returns it without the newline.
func readLine(r io.Reader, limit int) ([]byte, error) {
	line, err := bufio.NewReader(io.LimitReader(r, int64(limit)+1)).ReadBytes('\n')
	switch {
	case errors.Is(err, io.EOF) && len(line) > limit:
		return nil, errTooLong
	case errors.Is(err, io.EOF) && len(line) > 0:
		return nil, io.ErrUnexpectedEOF
	case err != nil:
		return nil, err
	}
	return line[:len(line)-1], nil
}

// decode decodes one JSON object. Its version must be [Version]. Name is the name of the
// message in errors.
func decode[T Request | Response](line []byte, name string) (message T, err error) {
	var head struct {
		Version *int `json:"version"`
	}
	if err := json.Unmarshal(line, &head); err != nil || head.Version == nil {
		return message, fmt.Errorf("the %s is not a message of cmwa", name)
	}
	if *head.Version != Version {
		return message, fmt.Errorf("the %s has version %d of the control protocol, and this program has version %d: "+
			"use the cmwa program with which the agent was started", name, *head.Version, Version)
	}
	if json.Unmarshal(line, &message) != nil {
		return message, fmt.Errorf("the %s is not a message of cmwa", name)
	}
	return message, nil
}

// DecodeRequest decodes the line of a request.
func DecodeRequest(line []byte) (Request, error) {
	request, err := decode[Request](line, "request")
	if err != nil {
		return Request{}, err
	}
	switch request.Command {
	case Show, Status, Drain:
		request.Pool, request.Job, request.File = "", "", nil
	case Plan:
		if request.File == nil {
			return Request{}, errors.New("plan needs a file")
		}
	case Pause, Resume:
		if request.Pool == "" {
			return Request{}, fmt.Errorf("%s needs the name of a pool", request.Command)
		}
	case Stop:
		if request.Job == "" {
			return Request{}, errors.New("stop needs the id of a job")
		}
	default:
		return Request{}, errors.New("the request has an unknown command: " +
			"use the cmwa program with which the agent was started")
	}
	return request, nil
}

// DecodeResponse decodes the line of a response.
func DecodeResponse(line []byte) (Response, error) { return decode[Response](line, "response") }
