package server

import (
	"encoding/json"
	"fmt"
	"math"
	"time"

	"github.com/cmwa-project/cmwa/cloud/server/store"
)

// updateInfo is an update in the form that Pulumi's CLI reads. Its fields are those of Pulumi's
// apitype.UpdateInfo.
type updateInfo struct {
	Kind          string          `json:"kind"`
	StartTime     int64           `json:"startTime"` // seconds since 1970
	Message       string          `json:"message"`
	Environment   json.RawMessage `json:"environment"`
	Config        json.RawMessage `json:"config"`
	Result        string          `json:"result"`
	EndTime       int64           `json:"endTime"` // the time of the call before the end
	Version       int64           `json:"version"`
	Changes       json.RawMessage `json:"resourceChanges"`
	ResourceCount int64           `json:"resourceCount,omitempty"`
}

// updateView is an update with its place in the history of its stack (Pulumi Cloud REST API
// documentation, List Stack Updates).
type updateView struct {
	Info          updateInfo `json:"info"`
	UpdateID      string     `json:"updateID"`
	Version       int64      `json:"version"`
	LatestVersion int64      `json:"latestVersion"`
	Requester     userView   `json:"requestedBy"`
}

// viewUpdate returns the view of an update at a time. Before the end of the update, its end is this time,
// because the CLI prints the difference as the duration.
func viewUpdate(st stack, u store.Update, now time.Time) updateView {
	info := updateInfo{
		Kind: u.Kind, Message: u.Message, Environment: json.RawMessage(u.Environment),
		Config: json.RawMessage(u.Config), Result: updateResult(u.Status), Version: u.Version,
		Changes: json.RawMessage(u.Changes), ResourceCount: u.Resources,
	}
	if u.DryRun {
		info.Kind = "preview"
	}
	if !u.Started.IsZero() {
		info.StartTime = u.Started.Unix()
	}
	if !u.Ended.IsZero() {
		info.EndTime = u.Ended.Unix()
	} else if info.StartTime > 0 {
		info.EndTime = now.Unix()
	}
	return updateView{
		Info: info, UpdateID: u.ID, Version: u.Version, LatestVersion: st.Version, Requester: shortUser(u.Requester),
	}
}

// updateResult returns the status of an update as a value of apitype.UpdateResult.
func updateResult(status string) string {
	switch status {
	case running:
		return "in-progress"
	case cancelled:
		return failed
	}
	return status
}

// listHistory lists the updates of a stack, the newest first and without dry runs. Page 0 has all
// updates. The documented output-type=service adds the ids and the requesters.
func (s *Server) listHistory(c *call) (reply, error) {
	query := c.URL.Query()
	page, size, err := parsePage(query, 0)
	if err != nil {
		return reply{}, err
	}
	limit, offset := size, (page-1)*size
	if page == 0 {
		limit, offset = math.MaxInt64, 0
	}
	var st stack
	var found []store.Update
	var total int64
	err = s.db.Read(c.Context(), func(t *store.Tx) (err error) {
		if st, err = s.stackFromPath(t, c); err != nil {
			return err
		}
		found, total, err = t.History(st.ID, limit, offset)
		return err
	})
	if err != nil {
		return reply{}, err
	}
	if query.Get("output-type") == "service" {
		return reply{body: viewUpdates(c, st, found, size, total)}, nil
	}
	all := make([]updateInfo, 0, len(found))
	for _, u := range found {
		all = append(all, viewUpdate(st, u, c.now).Info)
	}
	return reply{body: map[string]any{"updates": all, "itemsPerPage": size, "total": total}}, nil
}

func viewUpdates(c *call, st stack, updates []store.Update, size, total int64) map[string]any {
	all := make([]updateView, 0, len(updates))
	for _, u := range updates {
		all = append(all, viewUpdate(st, u, c.now))
	}
	return map[string]any{"updates": all, "itemsPerPage": size, "total": total}
}

// listPreviews lists the dry runs since the last update of a stack, the oldest first unless the
// query has asc=false.
func (s *Server) listPreviews(c *call) (reply, error) {
	query := c.URL.Query()
	page, size, err := parsePage(query, 1)
	if err != nil {
		return reply{}, err
	}
	var st stack
	var found []store.Update
	var total int64
	err = s.db.Read(c.Context(), func(t *store.Tx) error {
		if st, err = s.stackFromPath(t, c); err != nil {
			return err
		}
		last, _, err := t.Update(st.Update)
		if err != nil {
			return err
		}
		found, total, err = t.Previews(st.ID, last.Started, query.Get("asc") != "false", size, (page-1)*size)
		return err
	})
	return reply{body: viewUpdates(c, st, found, size, total)}, err
}

func (s *Server) getLatestUpdate(c *call) (reply, error) {
	return s.oneUpdate(c, func(t *store.Tx, st stack) (store.Update, bool, error) {
		return t.Update(st.Update)
	})
}

func (s *Server) getPastUpdate(c *call) (reply, error) { return s.oneUpdate(c, updateOfVersion(c)) }

func (s *Server) getPreview(c *call) (reply, error) {
	return s.oneUpdate(c, func(t *store.Tx, st stack) (store.Update, bool, error) {
		return t.Preview(st.ID, c.PathValue("id"))
	})
}

// getUpdateSummary returns the parts of an update that a list of updates shows.
func (s *Server) getUpdateSummary(c *call) (reply, error) {
	found, err := s.oneUpdate(c, updateOfVersion(c))
	if err != nil {
		return reply{}, err
	}
	info := found.body.(updateView).Info
	return reply{body: map[string]any{
		"result": info.Result, "startTime": info.StartTime, "endTime": info.EndTime,
		"resourceChanges": info.Changes, "resourceCount": info.ResourceCount,
	}}, nil
}

// findUpdate finds an update of a stack.
type findUpdate func(*store.Tx, stack) (store.Update, bool, error)

// updateOfVersion finds the update of the version in the path.
func updateOfVersion(c *call) findUpdate {
	return func(t *store.Tx, st stack) (store.Update, bool, error) {
		version, err := parseNumber("version", c.PathValue("version"), 1, math.MaxInt64)
		if err != nil {
			return store.Update{}, false, err
		}
		return t.UpdateOfVersion(st.ID, version)
	}
}

// oneUpdate answers with the update that find returns.
func (s *Server) oneUpdate(c *call, find findUpdate) (reply, error) {
	var view updateView
	err := s.db.Read(c.Context(), func(t *store.Tx) error {
		st, err := s.stackFromPath(t, c)
		if err != nil {
			return err
		}
		found, ok, err := find(t, st)
		if err == nil && !ok {
			return notFound("stack %s has no such update", st.Path())
		}
		view = viewUpdate(st, found, c.now)
		return err
	})
	return reply{body: view}, err
}

// countResources returns the number of resources after the last completed update.
func (s *Server) countResources(c *call) (reply, error) {
	st, err := s.readStack(c)
	return reply{body: map[string]int64{"resourceCount": st.Resources, "version": st.Version}}, err
}

// listResources returns the resources of a version of a stack, as they stand in the state. The version is
// a number, or "latest" for the newest complete one.
func (s *Server) listResources(c *call) (reply, error) {
	st, err := s.readStack(c)
	if err != nil {
		return reply{}, err
	}
	version := st.Version
	if text := c.PathValue("version"); text != "latest" {
		if version, err = st.parseVersion(text); err != nil {
			return reply{}, err
		}
	}
	d, _, err := s.readVersion(c.Context(), st.ID, version)
	if err != nil {
		return reply{}, err
	}
	var content struct {
		Deployment struct {
			Resources []json.RawMessage `json:"resources"`
		} `json:"deployment"`
	}
	if err := json.Unmarshal(d.Encode(), &content); err != nil {
		return reply{}, fmt.Errorf("read a state: %w", err)
	}
	all := make([]map[string]json.RawMessage, 0, len(content.Deployment.Resources))
	for _, one := range content.Deployment.Resources {
		all = append(all, map[string]json.RawMessage{"resource": one})
	}
	return reply{body: map[string]any{"resources": all, "version": version}}, nil
}
