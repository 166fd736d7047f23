package journal

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/schema/secret"
)

const version = 1 // of the format; a release reads only its own

// maxRecord is the size of the largest record in bytes: a service's response with two tokens
// has at most 1 MiB.
const maxRecord = 4 << 20

// Errors of Decode.
var (
	errDamaged = errors.New("the record is damaged")
	errVersion = errors.New("the record is of another release of the agent")
)

// content is the form of an encoded record. Only logs use the texts of the progress.
type content struct {
	Version    int                 `json:"version"`
	Job        string              `json:"job"`
	Workflow   string              `json:"workflow"`
	Kind       runtime.Kind        `json:"kind"`
	Token      string              `json:"token"`
	OIDC       string              `json:"oidc,omitempty"`
	Pool       string              `json:"pool"`
	PoolName   string              `json:"poolName"`
	Identity   runtime.Identity    `json:"identity"`
	Generation uint64              `json:"generation"`
	CA         string              `json:"ca,omitempty"`
	Claimed    time.Time           `json:"claimed"`
	Restarts   int                 `json:"restarts,omitempty"`
	Stage      runtime.RecordStage `json:"stage"`
	Step       int                 `json:"step"`
	Lines      int                 `json:"lines"`
	Sent       int                 `json:"sent,omitempty"`
	Status     runtime.Status      `json:"status,omitempty"`
}

// Encode returns a record as JSON, with the job's tokens but without the texts of its progress.
func Encode(r runtime.Record) ([]byte, error) {
	text, err := json.Marshal(content{
		Version: version, Job: r.Job, Workflow: r.WorkflowID, Kind: r.Kind,
		Token: r.Token.Reveal(), OIDC: r.OIDC.Reveal(),
		Pool: r.Pool, PoolName: r.PoolName, Identity: r.Identity, Generation: r.Generation,
		CA: r.CA, Claimed: r.Claimed, Restarts: r.Restarts, Stage: r.Stage,
		Step: r.Progress.Step, Lines: r.Progress.Lines, Sent: r.Progress.Sent, Status: r.Progress.Status,
	})
	if err != nil {
		return nil, errors.New("encode the record") // err may contain a token
	}
	if len(text) > maxRecord {
		return nil, fmt.Errorf("the record has %d bytes, more than the limit of %d", len(text), maxRecord)
	}
	return text, nil
}

// Decode returns an encoded record. Its errors contain no part of the contents. A record with an
// unknown stage gets the stage handed off, because its job may have run.
func Decode(contents []byte) (runtime.Record, error) {
	var c content
	switch {
	case len(contents) > maxRecord, json.Unmarshal(contents, &c) != nil:
		return runtime.Record{}, errDamaged
	case c.Version != version:
		return runtime.Record{}, errVersion
	case c.Job == "", c.Pool == "", c.Step < 0, c.Lines < 0, c.Sent < 0, c.Restarts < 0:
		return runtime.Record{}, errDamaged
	}
	if !c.Stage.Valid() {
		c.Stage = runtime.RecordHandedOff
	}
	return runtime.Record{
		Job: c.Job, WorkflowID: c.Workflow, Kind: c.Kind, Token: secret.New(c.Token), OIDC: secret.New(c.OIDC),
		Pool: c.Pool, PoolName: c.PoolName, Identity: c.Identity, Generation: c.Generation, CA: c.CA,
		Claimed: c.Claimed, Restarts: c.Restarts, Stage: c.Stage,
		Progress: runtime.Progress{Step: c.Step, Lines: c.Lines, Sent: c.Sent, Status: c.Status},
	}, nil
}
