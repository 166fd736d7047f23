package journal

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"strconv"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// version is the version of the format. A release reads only its own.
const version = 1

const (
	slotSize  = 512     // size of the slot in bytes
	sumSize   = 8       // length of a checksum in hexadecimal digits
	maxRecord = 4 << 20 // largest record in bytes: a service's response with two tokens has at most 1 MiB
)

// Errors of [Decode].
var (
	// ErrFree is returned for a file without a record.
	ErrFree = errors.New("there is no record")
	// ErrDamaged is returned for contents that Encode does not write.
	ErrDamaged = errors.New("the record is damaged")
	// ErrVersion is returned for a record of another version.
	ErrVersion = errors.New("the record is of another release of the agent")
)

// line is the form of a record in a file, without its stage and progress.
type line struct {
	Version    int              `json:"version"`
	Job        string           `json:"job"`
	Workflow   string           `json:"workflow"`
	Kind       runtime.Kind     `json:"kind"`
	Token      string           `json:"token"`
	OIDC       string           `json:"oidc,omitempty"`
	Pool       string           `json:"pool"`
	PoolName   string           `json:"poolName"`
	Identity   runtime.Identity `json:"identity"`
	Generation uint64           `json:"generation"`
	CA         string           `json:"ca,omitempty"`
	Claimed    time.Time        `json:"claimed"`
}

// slot is the part of a record that changes. It does not contain the texts of the progress,
// because only logs use them.
type slot struct {
	Line   string              `json:"line"` // checksum of the line
	Stage  runtime.RecordStage `json:"stage"`
	Step   int                 `json:"step"`
	Lines  int                 `json:"lines"`
	Sent   int                 `json:"sent,omitempty"`
	Status runtime.Status      `json:"status,omitempty"`
}

// Encode returns the contents of a file with a record: the slot and the line. They contain
// the job's tokens.
func Encode(record runtime.Record) ([]byte, error) {
	text, err := json.Marshal(line{
		Version: version, Job: record.Job, Workflow: record.WorkflowID, Kind: record.Kind,
		Token: record.Token.Reveal(), OIDC: record.OIDC.Reveal(),
		Pool: record.Pool, PoolName: record.PoolName, Identity: record.Identity, Generation: record.Generation,
		CA: record.CA, Claimed: record.Claimed,
	})
	if err != nil {
		return nil, errors.New("encode the record") // err may contain a token
	}
	sum := checksum(text)
	out := append(encodeSlot(sum, record.Stage, record.Progress), sum...)
	out = append(append(append(out, ' '), text...), '\n')
	if len(out) > maxRecord {
		return nil, fmt.Errorf("the record has %d bytes, more than the limit of %d", len(out), maxRecord)
	}
	return out, nil
}

// encodeSlot returns the slot of the record whose line has this checksum.
func encodeSlot(sum string, stage runtime.RecordStage, p runtime.Progress) []byte {
	text, err := json.Marshal(slot{sum, stage, p.Step, p.Lines, p.Sent, p.Status})
	if err != nil {
		panic(err) // strings and numbers only
	}
	out := bytes.Repeat([]byte{' '}, slotSize)
	out[slotSize-1] = '\n'
	if n := sumSize + 1 + len(text); n >= slotSize { // only with a status that no runner reports
		return encodeSlot(sum, stage, runtime.Progress{})
	}
	copy(out, checksum(text)+" ")
	copy(out[sumSize+1:], text)
	return out
}

// Decode returns the record of a file with these contents. Its errors contain no part of the
// contents. A record with a damaged slot gets the stage handed off, because its job may have
// run.
func Decode(contents []byte) (runtime.Record, error) {
	// Read the line.
	var record runtime.Record
	switch {
	case len(contents) > maxRecord:
		return record, ErrDamaged
	case len(bytes.TrimRight(contents, "\x00")) == 0,
		len(contents) > slotSize && contents[slotSize] == 0:
		return record, ErrFree
	case len(contents) <= slotSize:
		return record, ErrDamaged
	}
	text, _, complete := bytes.Cut(contents[slotSize:], []byte{'\n'})
	text, sum, ok := checked(text)
	var l line
	switch {
	case !complete || !ok || json.Unmarshal(text, &l) != nil:
		return record, ErrDamaged
	case l.Version != version:
		return record, ErrVersion
	case l.Job == "" || l.Pool == "":
		return record, ErrDamaged
	}
	record = runtime.Record{
		Job: l.Job, WorkflowID: l.Workflow, Kind: l.Kind, Token: secret.New(l.Token), OIDC: secret.New(l.OIDC),
		Pool: l.Pool, PoolName: l.PoolName, Identity: l.Identity, Generation: l.Generation, CA: l.CA,
		Claimed: l.Claimed, Stage: runtime.RecordHandedOff,
	}

	// Read the slot.
	var s slot
	text, _, ok = checked(bytes.TrimRight(contents[:slotSize], " \n"))
	if !ok || json.Unmarshal(text, &s) != nil || s.Line != sum || !s.Stage.Valid() ||
		s.Step < 0 || s.Lines < 0 || s.Sent < 0 {
		return record, nil
	}
	record.Stage = s.Stage
	record.Progress = runtime.Progress{Step: s.Step, Lines: s.Lines, Sent: s.Sent, Status: s.Status}
	return record, nil
}

// checksum returns the checksum of a text. It detects damage, but not deliberate changes: the
// folder belongs to the agent's user.
func checksum(text []byte) string {
	sum := strconv.FormatUint(uint64(crc32.Checksum(text, crc32.MakeTable(crc32.Castagnoli))), 16)
	return fmt.Sprintf("%0*s", sumSize, sum)
}

// checked splits a line into its checksum and the text after the space, and reports whether
// the checksum is correct.
func checked(line []byte) (text []byte, sum string, ok bool) {
	if len(line) < sumSize+1 || line[sumSize] != ' ' {
		return nil, "", false
	}
	text, sum = line[sumSize+1:], string(line[:sumSize])
	return text, sum, checksum(text) == sum
}
