package server

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/cmwa-project/cmwa/cloud/server/page"
	"github.com/cmwa-project/cmwa/cloud/server/store"
)

func (s *Server) pageOfStacks(ctx context.Context, search string, after page.StackName) (all page.Stacks, err error) {
	err = s.db.Read(ctx, func(t *store.Tx) error {
		filter := store.StackFilter{Organization: s.options.Organization, Text: search}
		rows, err := t.Stacks(filter, [3]string{s.options.Organization, after.Project, after.Name}, pageRows+1)
		if err != nil {
			return err
		}
		if len(rows) > pageRows {
			rows = rows[:pageRows]
			last := rows[pageRows-1]
			next := s.pageName(last.Project, last.Name)
			all.Next = &next
		}
		for _, row := range rows {
			all.List = append(all.List, stackOfPage(s.pageName(row.Project, row.Name), row))
		}
		return nil
	})
	return all, err
}

func stackOfPage(name page.StackName, row store.Stack) page.StackSummary {
	return page.StackSummary{
		Stack: name, Resources: row.Resources, Updated: row.Updated, Kind: row.Kind, Result: row.Result,
	}
}

func pageStack(t *store.Tx, name page.StackName) (store.Stack, error) {
	return findStack(t, name.Organization, name.Project, name.Name)
}

func (s *Server) pageOfStack(ctx context.Context, name page.StackName) (st page.Stack, err error) {
	var row store.Stack
	err = s.db.Read(ctx, func(t *store.Tx) (err error) {
		if row, err = pageStack(t, name); err != nil {
			return err
		}
		st.StackSummary, st.Version, st.Created = stackOfPage(name, row), row.Version, row.Created
		if st.Pool, err = t.PoolOfStack(row.ID); err != nil {
			return err
		}
		if _, st.Paused, err = t.Paused(row.Organization, row.ID); err != nil {
			return err
		}
		if st.Tags, err = t.StackTags(row.ID); err != nil {
			return err
		}
		updates, err := t.UpdatesBefore(row.ID, time.Time{}, "", recentRows)
		if err != nil {
			return err
		}
		if st.Updates, err = updatesOfPage(name, updates); err != nil {
			return err
		}
		if len(updates) > 0 {
			if err := readObject(updates[0].Config, &st.Config); err != nil {
				return err
			}
		}
		deployments, err := t.Deployments(row.ID, recentRows, 0)
		st.Deployments = s.deploymentsOfPage(deployments)
		return err
	})
	if err != nil {
		return st, err
	}
	d, _, err := s.readVersion(ctx, row.ID, row.Version)
	if err != nil {
		return st, err
	}
	st.Outputs = d.Outputs()
	return st, nil
}

func (s *Server) pageOfResources(ctx context.Context, name page.StackName, from int) (all page.Resources, err error) {
	var row store.Stack
	err = s.db.Read(ctx, func(t *store.Tx) (err error) {
		row, err = pageStack(t, name)
		return err
	})
	if err != nil {
		return all, err
	}
	d, _, err := s.readVersion(ctx, row.ID, row.Version)
	if err != nil {
		return all, err
	}
	resources := d.Resources()
	end := min(from+pageRows, len(resources))
	all = page.Resources{Total: len(resources), List: resources[min(from, end):end]}
	if end < len(resources) {
		all.Next = end
	}
	return all, nil
}

func (s *Server) pageOfUpdates(ctx context.Context, name page.StackName, after string) (all page.Updates, err error) {
	var created int64
	var id string
	if after != "" {
		digits, last, found := strings.Cut(after, ".")
		if created, err = strconv.ParseInt(digits, 10, 64); err != nil || !found {
			return all, &page.Problem{Code: http.StatusBadRequest, Message: "The address does not belong to this list."}
		}
		id = last
	}
	err = s.db.Read(ctx, func(t *store.Tx) error {
		row, err := pageStack(t, name)
		if err != nil {
			return err
		}
		rows, err := t.UpdatesBefore(row.ID, store.FromNanos(created), id, pageRows+1)
		if err != nil {
			return err
		}
		if len(rows) > pageRows {
			rows = rows[:pageRows]
			last := rows[pageRows-1]
			all.Next = fmt.Sprintf("%d.%s", store.ToNanos(last.Created), last.ID)
		}
		all.List, err = updatesOfPage(name, rows)
		return err
	})
	return all, err
}

func (s *Server) pageOfUpdate(ctx context.Context, name page.StackName, id, from string) (u page.Update, err error) {
	next, err := parseNumber("from", cmp.Or(from, "0"), 0, 1<<62)
	if err != nil {
		return u, err
	}
	err = s.db.Read(ctx, func(t *store.Tx) error {
		st, err := pageStack(t, name)
		if err != nil {
			return err
		}
		row, found, err := t.Update(id)
		found = found && row.Stack == st.ID
		if version, parseErr := strconv.ParseInt(id, 10, 64); parseErr == nil {
			row, found, err = t.UpdateOfVersion(st.ID, version)
		}
		if err == nil && !found {
			err = notFound("stack %s has no update %s", name, id)
		}
		if err != nil {
			return err
		}
		list, err := updatesOfPage(name, []store.Update{row})
		if err != nil {
			return err
		}
		u = list[0]
		if err := readObject(row.Environment, &u.Environment); err != nil {
			return err
		}
		if err := readObject(row.Config, &u.Config); err != nil {
			return err
		}
		if u.Deployment, err = t.DeploymentVersion(row.Deployment); err != nil {
			return err
		}
		events, next, over, err := eventsFrom(t, row, next, time.Now())
		if err != nil {
			return err
		}
		for _, one := range events {
			if line, ok := lineOfEvent(one.text); ok {
				u.Log.Lines = append(u.Log.Lines, line)
			}
		}
		if !over {
			u.Log.Next = strconv.FormatInt(next, 10)
			u.Log.More = !row.Ended.IsZero()
		}
		return nil
	})
	return u, err
}

// colours are the marks of Pulumi's engine for colours, such as <{%reset%}>.
var colours = regexp.MustCompile(`<\{%.*?%\}>`)

// lineOfEvent returns an engine event as a line of a log. Ok is false for an event that the page does not show: it
// repeats another one, or a resource does not change.
func lineOfEvent(text json.RawMessage) (line page.Line, ok bool) {
	type metadata struct {
		Metadata struct{ Op, URN, Type string }
	}
	type message struct {
		Prefix    string // such as "warning: "
		Message   string
		Ephemeral bool // only for progress bars
	}
	var e struct {
		Timestamp                                           int64
		StdoutEvent, DiagnosticEvent, PolicyEvent           *message
		ResourcePreEvent, ResOutputsEvent, ResOpFailedEvent *metadata
	}
	if json.Unmarshal(text, &e) != nil { // its fields have other types than documented
		return page.Line{}, false
	}
	line.Time = time.Unix(e.Timestamp, 0)
	for _, m := range []*message{e.StdoutEvent, e.DiagnosticEvent, e.PolicyEvent} {
		if m != nil {
			line.Text = colours.ReplaceAllString(m.Prefix+m.Message, "")
			return line, !m.Ephemeral && strings.TrimSpace(line.Text) != ""
		}
	}
	for suffix, m := range map[string]*metadata{
		"": e.ResourcePreEvent, " done": e.ResOutputsEvent, " failed": e.ResOpFailedEvent,
	} {
		if m != nil {
			urn := strings.SplitN(m.Metadata.URN, "::", 4) // urn:pulumi:STACK::PROJECT::TYPE::NAME
			line.Text = fmt.Sprintf("%s %s %s%s", m.Metadata.Op, m.Metadata.Type, urn[len(urn)-1], suffix)
			return line, m.Metadata.Op != "same" && m.Metadata.Op != ""
		}
	}
	return page.Line{}, false
}

func updatesOfPage(name page.StackName, rows []store.Update) ([]page.Update, error) {
	var all []page.Update
	for _, row := range rows {
		u := page.Update{
			Stack: name, ID: row.ID, Version: row.Version, Kind: row.Kind, Preview: row.DryRun, Status: row.Status,
			Requester: row.Requester, Message: row.Message,
			Created: row.Created, Started: row.Started, Ended: row.Ended,
		}
		if err := readObject(row.Changes, &u.Changes); err != nil {
			return nil, err
		}
		delete(u.Changes, "same")
		all = append(all, u)
	}
	return all, nil
}

// readObject decodes a JSON object of an update.
func readObject(text string, into any) error {
	if err := json.Unmarshal([]byte(text), into); err != nil {
		return fmt.Errorf("read an update: %w", err)
	}
	return nil
}
