package server

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/cmwa-project/cmwa/cloud/server/page"
	"github.com/cmwa-project/cmwa/cloud/server/store"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// pageRows is the number of rows in a list of the web page, and recentRows that in a list of the most recent ones.
const (
	pageRows   = 50
	recentRows = 10
)

// pages returns the handler of the web page.
func (s *Server) pages() (http.Handler, error) {
	return page.New(page.Source{
		SignIn: s.signIn, SignOut: s.signOut, User: s.sessionUser,
		Deployments: s.pageOfDeployments, Deployment: s.pageOfDeployment,
		Stacks: s.pageOfStacks, Stack: s.pageOfStack, Resources: s.pageOfResources,
		Updates: s.pageOfUpdates, Update: s.pageOfUpdate, Pools: s.pageOfPools,
	}, cmp.Or(s.options.ConsoleURL, s.options.PublicURL), s.log)
}

// As returns the problem in the form of the web page, for [errors.As].
func (p *problem) As(target any) bool {
	shown, ok := target.(**page.Problem)
	if ok {
		*shown = &page.Problem{Code: p.code, Message: p.message}
	}
	return ok
}

func (s *Server) signIn(ctx context.Context, address string, token secret.String) (secret.String, error) {
	session := sessionToken.mint()
	err := s.db.Write(ctx, func(t *store.Tx) error {
		now := time.Now()
		holder, err := tokenHolder(t, token, now)
		if err != nil {
			return err
		}
		if holder.kind != userToken {
			return page.ErrToken
		}
		opener := hex.EncodeToString(hash(token))
		return saveTokenUntil(t, session, principal{sessionToken, opener}, now.Add(page.Session))
	})
	if errors.Is(err, page.ErrToken) {
		err = cmp.Or(s.logins.add(address, time.Now()), err)
	}
	return session, err
}

func (s *Server) signOut(ctx context.Context, session secret.String) error {
	return s.db.Write(ctx, func(t *store.Tx) error { return t.DeleteToken(hash(session), string(sessionToken)) })
}

// sessionUser returns the user of a session, or "" if the session or the token that opened it is not valid any more.
func (s *Server) sessionUser(ctx context.Context, session secret.String) (user string, err error) {
	err = s.db.Read(ctx, func(t *store.Tx) error {
		now := time.Now()
		opened, err := tokenHolder(t, session, now)
		if err != nil || opened.kind != sessionToken {
			return err
		}
		by, err := hex.DecodeString(opened.subject)
		if err != nil {
			return fmt.Errorf("read a session: %w", err)
		}
		holder, _, err := t.TokenHolder(by, now)
		user = holder.Subject
		return err
	})
	return user, err
}

func (s *Server) pageOfDeployments(ctx context.Context, active bool, before int64) (all page.Deployments, err error) {
	err = s.db.Read(ctx, func(t *store.Tx) error {
		list := t.DeploymentsBefore
		if active {
			list = t.ActiveDeploymentsBefore
		}
		rows, err := list(s.options.Organization, before, pageRows+1)
		if err != nil {
			return err
		}
		if len(rows) > pageRows {
			rows = rows[:pageRows]
			all.Next = rows[pageRows-1].Seq
		}
		all.List = s.deploymentsOfPage(rows)
		if all.Paused, _, err = t.Paused(s.options.Organization, ""); err != nil {
			return err
		}
		all.Active, err = t.CountActiveDeployments(s.options.Organization)
		return err
	})
	return all, err
}

// pageName returns the full name of a stack of the organization.
func (s *Server) pageName(project, stack string) page.StackName {
	return page.StackName{Organization: s.options.Organization, Project: project, Name: stack}
}

func (s *Server) deploymentsOfPage(rows []store.Deployment) []page.Deployment {
	all := make([]page.Deployment, 0, len(rows))
	for _, row := range rows {
		d := page.Deployment{
			Key: row.Seq, Stack: s.pageName(row.Project, row.Stack), Version: int64(row.Version),
			Operation: row.Operation,
			Status:    outcome(row.Status, row.Ended),
			Pool:      row.PoolName, Agent: row.Agent, Requester: row.Requester, Initiator: row.Initiator,
			Created: row.Created, Started: row.Claimed,
		}
		if row.Ended != "" {
			d.Ended = row.Modified
		}
		all = append(all, d)
	}
	return all
}

func (s *Server) pageOfDeployment(
	ctx context.Context, name page.StackName, version int64, from string,
) (d page.Deployment, err error) {
	err = s.db.Read(ctx, func(t *store.Tx) error {
		st, err := pageStack(t, name)
		if err != nil {
			return err
		}
		id, _, err := t.DeploymentID(st.ID, version)
		if err != nil {
			return err
		}
		j, found, err := asJob(t.JobOf(store.DeploymentJob, id))
		if err == nil && !found {
			err = notFound("stack %s has no deployment %d, or it was deleted", name, version)
		}
		if err != nil {
			return err
		}
		row, err := t.Deployment(j.Seq)
		if err != nil {
			return err
		}
		d = s.deploymentsOfPage([]store.Deployment{row})[0]
		for _, view := range viewSteps(j.Steps, j.Ended) {
			step := page.Step{Name: view.Name, Status: view.Outcome, Started: view.Started}
			if view.Status == succeeded || view.Status == failed {
				step.Ended = view.LastUpdated
			}
			d.Steps = append(d.Steps, step)
		}
		updates, err := t.DeploymentUpdates(id)
		if err != nil {
			return err
		}
		if d.Updates, err = updatesOfPage(name, updates); err != nil {
			return err
		}
		d.Log, err = s.logOfPage(t, j, from)
		return err
	})
	return d, err
}

// logOfPage returns a page of the log of all steps.
func (s *Server) logOfPage(t *store.Tx, j *job, from string) (page.Log, error) {
	at, err := parseCursor(from, len(j.Steps))
	if err != nil {
		return page.Log{}, err
	}
	part, err := s.pageFrom(t, j, at)
	if err != nil {
		return page.Log{}, err
	}
	all := page.Log{Next: part.NextToken}
	all.More = all.Next != "" && (j.Ended != "" || len(part.Lines) >= pageLines)
	for _, line := range part.Lines {
		all.Lines = append(all.Lines, page.Line{Header: line.Header, Time: line.Timestamp, Text: line.Line})
	}
	return all, nil
}

func (s *Server) pageOfPools(ctx context.Context) (all []page.Pool, err error) {
	err = s.db.Read(ctx, func(t *store.Tx) error {
		now := time.Now()
		standard, _, err := t.Routing(s.options.Organization)
		if err != nil {
			return err
		}
		pools, err := t.Pools(s.options.Organization)
		if err != nil {
			return err
		}
		for _, p := range pools {
			one := page.Pool{ID: p.ID, Name: p.Name, Description: p.Description, Default: p.ID == standard,
				Status: agentStatus(p.Seen, now), Seen: p.Seen}
			agents, err := t.Agents(p.ID, now.Add(-agentRetention))
			if err != nil {
				return err
			}
			for _, a := range agents {
				one.Agents = append(one.Agents, page.Agent{Host: a.Hostname, IP: a.IP, PID: a.PID, Platform: a.Platform,
					Version: a.Version, Status: agentStatus(a.Seen, now), Seen: a.Seen})
			}
			all = append(all, one)
		}
		return nil
	})
	return all, err
}
