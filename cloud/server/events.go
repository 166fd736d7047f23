package server

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/cmwa-project/cmwa/cloud/server/objects"
	"github.com/cmwa-project/cmwa/cloud/server/store"
)

const (
	eventPage = 1 << 20          // bytes of events after which a page ends
	eventGap  = 10 * time.Second // how long readers wait for events that others have overtaken
)

// event is an engine event as the client has sent it, with the fields that this service reads.
type event struct {
	text     json.RawMessage
	sequence int64
	changes  map[string]int64 // of a summary; nil for other events
}

// readEvents reads events and returns them in the order of their sequence.
func readEvents(sent []json.RawMessage) ([]event, error) {
	all := make([]event, len(sent))
	for i, text := range sent {
		var fields struct {
			Sequence *int64 `json:"sequence"`
			Summary  *struct {
				Changes map[string]int64 `json:"resourceChanges"`
			} `json:"summaryEvent"`
		}
		if err := json.Unmarshal(text, &fields); err != nil {
			return nil, badRequest("event %d does not have the documented form", i)
		}
		// The page after an event begins with the next sequence.
		if fields.Sequence == nil || *fields.Sequence < 0 || *fields.Sequence == math.MaxInt64 {
			return nil, badRequest("event %d has no sequence from 0 to %d", i, int64(math.MaxInt64-1))
		}
		all[i] = event{text: text, sequence: *fields.Sequence}
		if fields.Summary != nil {
			all[i].changes = fields.Summary.Changes
		}
	}
	slices.SortStableFunc(all, func(a, b event) int { return int(min(max(a.sequence-b.sequence, -1), 1)) })
	return all, nil
}

// saveEvents stores a batch of events. A repeated batch has no effect.
func (s *Server) saveEvents(c *call) (reply, error) {
	var body struct {
		Events []json.RawMessage `json:"events"`
	}
	if err := c.decode(maxEventBody, &body); err != nil {
		return reply{}, err
	}
	events, err := readEvents(body.Events)
	if err != nil {
		return reply{}, err
	}
	var changes string
	sorted := make([]json.RawMessage, len(events))
	for i, one := range events {
		sorted[i] = one.text
		if one.changes == nil {
			continue
		}
		text, err := json.Marshal(one.changes)
		if err != nil {
			return reply{}, fmt.Errorf("write the changes of an update: %w", err)
		}
		changes = string(text)
	}
	text, err := json.Marshal(sorted)
	if err != nil {
		return reply{}, fmt.Errorf("write events: %w", err)
	}
	packed := objects.Pack(text)

	hash := sha256.Sum256(text)
	err = s.db.Write(c.Context(), func(t *store.Tx) error {
		u, err := heldUpdate(t, c)
		if err != nil {
			return err
		}
		if len(events) == 0 {
			return store.ErrNoChange
		}
		err = t.AddEvents(u.ID, store.EventBatch{
			First: events[0].sequence, Last: events[len(events)-1].sequence, Hash: hash[:], Received: c.now,
			Events: packed,
		})
		if err != nil || changes == "" {
			return err
		}
		return t.SetChanges(u.ID, changes)
	})
	if errors.Is(err, store.ErrDuplicate) {
		err = nil
	}
	return reply{}, err
}

// eventsView is a page of events. Next is the token of the next page. It is nil when the update has ended and the page
// is the last.
type eventsView struct {
	Events []json.RawMessage `json:"events"`
	Next   *string           `json:"continuationToken"`
}

// getEvents returns a page of the events of an update in the order of their sequence. The token is the sequence of the
// next event. Batches may arrive out of order: while the update runs, a page ends where events are missing, but it
// waits only some seconds for them, because they may be lost.
func (s *Server) getEvents(c *call) (reply, error) {
	next := int64(0)
	if token := c.URL.Query().Get("continuationToken"); token != "" {
		var err error
		if next, err = parseNumber("continuationToken", token, 0, 1<<62); err != nil {
			return reply{}, err
		}
	}
	wanted, err := newEventFilter(c.URL.Query()["type"], c.URL.Query().Get("urn"))
	if err != nil {
		return reply{}, err
	}

	view := eventsView{Events: []json.RawMessage{}}
	err = s.db.Read(c.Context(), func(t *store.Tx) error {
		u, _, err := s.updateFromPath(t, c)
		if err != nil {
			return err
		}
		events, next, over, err := eventsFrom(t, u, next, c.now)
		if err != nil {
			return err
		}
		for _, one := range events {
			if wanted.match(one.text) {
				view.Events = append(view.Events, one.text)
			}
		}
		if !over {
			view.Next = new(strconv.FormatInt(next, 10))
		}
		return nil
	})
	return reply{body: view}, err
}

// eventsFrom returns the events of an update from a sequence on, about eventPage bytes, and the sequence after them.
// Over is true when the update has ended and no events follow.
func eventsFrom(
	t *store.Tx, u store.Update, from int64, now time.Time,
) (events []event, next int64, over bool, err error) {
	next = from
	for size := 0; size < eventPage; {
		batch, found, err := t.NextEvents(u.ID, next)
		if err != nil {
			return nil, 0, false, err
		}
		runs := u.Ended.IsZero()
		if !found || runs && batch.First > next && now.Sub(batch.Received) < eventGap {
			return events, next, !runs, nil
		}
		read, err := unpackEvents(batch.Events)
		if err != nil {
			return nil, 0, false, err
		}
		for _, one := range read {
			if one.sequence >= next {
				events = append(events, one)
				size += len(one.text)
			}
		}
		next = batch.Last + 1
	}
	return events, next, false, nil
}

// unpackEvents reads a stored batch.
func unpackEvents(packed []byte) ([]event, error) {
	text, err := objects.Unpack(packed)
	if err != nil {
		return nil, fmt.Errorf("read events: %w", err)
	}
	var all []json.RawMessage
	if err := json.Unmarshal(text, &all); err != nil {
		return nil, fmt.Errorf("read events: %w", err)
	}
	return readEvents(all)
}

// eventFilter selects events by their type, such as resourcePreEvent, and by the URN of their resource. An empty field
// selects all.
type eventFilter struct {
	types []string
	urn   string
}

func newEventFilter(types []string, urn string) (eventFilter, error) {
	for _, one := range types {
		if _, err := strconv.Atoi(one); err == nil {
			return eventFilter{}, badRequest("type must be the name of an event, such as resourcePreEvent: " +
				"the numbers of events are not documented")
		}
	}
	return eventFilter{types, urn}, nil
}

func (f eventFilter) match(text json.RawMessage) bool {
	if len(f.types) == 0 && f.urn == "" {
		return true
	}
	var fields map[string]json.RawMessage
	if json.Unmarshal(text, &fields) != nil {
		return false
	}
	for name, value := range fields {
		var subject struct {
			URN      string `json:"urn"`
			Resource string `json:"resourceUrn"`
			Metadata struct {
				URN string `json:"urn"`
			} `json:"metadata"`
		}
		if len(f.types) > 0 && !slices.Contains(f.types, name) || json.Unmarshal(value, &subject) != nil {
			continue // it may be a number, such as sequence
		}
		if f.urn == "" || f.urn == subject.URN || f.urn == subject.Resource || f.urn == subject.Metadata.URN {
			return true
		}
	}
	return false
}
