package main

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cmwa-project/cmwa/cloud/server/servertest"
)

// killLease is the time of a lease in the service of TestKill: longer than a restart.
const killLease = 3 * time.Second

// killVariable makes the program of the tests the service of TestKill. Its value is the directory, and the address.
const killVariable = "CMWA_TEST_KILL"

// serveKilled is the service of TestKill. It returns if this is the program of the tests.
func serveKilled() {
	directory, address, found := strings.Cut(os.Getenv(killVariable), ",")
	if !found {
		return
	}
	s := stdio{stdout: os.Stdout, stderr: os.Stderr}
	os.Exit(serveLease(context.Background(), s, directory, address, killLease))
}

// killed is a service that is killed again and again.
type killed struct {
	directory string
	address   string
	log       *output
	token     atomic.Pointer[string]
}

// start starts the service.
func (k *killed) start() (*exec.Cmd, *output, error) {
	program, out := exec.Command(os.Args[0]), newOutput()
	program.Env = append(os.Environ(), killVariable+"="+k.directory+","+k.address)
	program.Stdout, program.Stderr = out, k.log
	return program, out, program.Start()
}

// readToken reads the access token of the first start.
func (k *killed) readToken() error {
	token, err := firstToken(k.directory)
	k.token.Store(&token)
	return err
}

// run starts the service, waits until it listens, and kills it after a time, or when ctx ends.
func (k *killed) run(ctx context.Context, after time.Duration) error {
	program, out, err := k.start()
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- program.Wait() }()
	limit := time.After(30 * time.Second)
	for !strings.Contains(out.String(), "listening on") {
		select {
		case <-out.written:
		case err := <-ended:
			return fmt.Errorf("the service does not start again: %w", err)
		case <-limit:
			return fmt.Errorf("the service does not start again")
		}
	}
	if k.token.Load() == nil {
		if err := k.readToken(); err != nil {
			return err
		}
	}
	select {
	case <-time.After(after):
	case <-ctx.Done():
	}
	if err := program.Process.Kill(); err != nil {
		return err
	}
	<-ended
	return nil
}

// call makes a call until there is a response that is no fault of the service.
func (k *killed) call(authorization, method, path string, body, into any) (code int, err error) {
	text, err := json.Marshal(body)
	if err != nil {
		return 0, err
	}
	for limit := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		code, err := k.once(authorization, method, path, text, into)
		if err == nil && code < 500 {
			return code, nil
		}
		if time.Now().After(limit) {
			return code, fmt.Errorf("%s %s: %d, %w", method, path, code, err)
		}
	}
}

func (k *killed) once(authorization, method, path string, text []byte, into any) (int, error) {
	token := k.token.Load()
	if token == nil {
		return 0, fmt.Errorf("the service has not started")
	}
	if authorization == "" {
		authorization = "token " + *token
	}
	r, err := http.NewRequest(method, "http://"+k.address+path, bytes.NewReader(text))
	if err != nil {
		return 0, err
	}
	r.Header.Set("Authorization", authorization)
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	got, err := io.ReadAll(response.Body)
	if err == nil && into != nil && response.StatusCode == http.StatusOK {
		err = json.Unmarshal(got, into)
	}
	return response.StatusCode, err
}

// record is what a client knows about a version.
type record struct {
	acknowledged []string // resources that the service has confirmed
	sent         []string // including a last request that was refused or is unknown
	complete     bool     // the service has confirmed the end
}

// killClient makes updates of one stack.
type killClient struct {
	*killed
	stack    string
	current  []string // resources
	versions map[int64]*record
	names    int
	waited   time.Duration // longest time until an update could start
}

func newKillClient(k *killed, i int) *killClient {
	return &killClient{killed: k, stack: fmt.Sprintf("s%d", i), versions: map[int64]*record{}}
}

// makeStack makes the stack if it does not exist.
func (c *killClient) makeStack() error {
	code, err := c.call("", "POST", "/api/stacks/organization/p", map[string]string{"stackName": c.stack}, nil)
	if err != nil || code != http.StatusOK && code != http.StatusConflict {
		return fmt.Errorf("create a stack: %d, %w", code, err)
	}
	return nil
}

func killResource(name string) map[string]any {
	return map[string]any{"urn": "urn:pulumi:s::p::a:b:C::" + name, "type": "a:b:C", "id": name}
}

// update makes one update. If the response to a start is lost, no client has the lease: the stack is locked until
// this lease expires.
func (c *killClient) update(journal bool, writes int) error {
	path := "/api/stacks/organization/p/" + c.stack
	var made struct {
		ID string `json:"updateID"`
	}
	var started struct {
		Version int64
		Token   string
	}
	request := map[string]any{}
	if journal {
		request["journalVersion"] = 1
	}
	begin := time.Now()
	for code := 0; code != http.StatusOK; {
		if code, err := c.call("", "POST", path+"/update", map[string]any{}, &made); err != nil || code != 200 {
			return fmt.Errorf("create an update: %d, %w", code, err)
		}
		var err error
		code, err = c.call("", "POST", path+"/update/"+made.ID, request, &started)
		if err != nil || code != http.StatusOK && code != http.StatusConflict {
			return fmt.Errorf("start an update: %d, %w", code, err)
		}
	}
	c.waited = max(c.waited, time.Since(begin))

	one := &record{acknowledged: slices.Clone(c.current), sent: slices.Clone(c.current)}
	if c.versions[started.Version] != nil {
		return fmt.Errorf("version %d was given twice", started.Version)
	}
	c.versions[started.Version] = one
	defer func() { c.current = one.acknowledged }()
	lease, path := "update-token "+started.Token, path+"/update/"+made.ID
	for i := range writes {
		c.names++
		name := fmt.Sprintf("r%d", c.names)
		call, body := "/checkpoint", map[string]any{}
		if journal {
			one.sent = append([]string{}, one.acknowledged...)
			one.sent = slices.Insert(one.sent, i, name) // new resources come before old ones
			call = "/journalentries"
			body["entries"] = []any{map[string]any{
				"version": 1, "kind": 1, "sequenceID": i + 1, "operationID": i + 1, "state": killResource(name),
			}}
		} else {
			one.sent = append(slices.Clone(one.acknowledged), name)
			all := []any{}
			for _, name := range one.sent {
				all = append(all, killResource(name))
			}
			body = map[string]any{"version": 3, "deployment": map[string]any{"resources": all}}
		}
		code, err := c.call(lease, "PATCH", path+call, body, nil)
		if err != nil || code == http.StatusForbidden {
			return err // the lease has expired
		}
		if code != http.StatusNoContent {
			return fmt.Errorf("write the state: %d, log of the service:\n%s", code, c.log)
		}
		one.acknowledged = one.sent
	}
	code, err := c.call(lease, "POST", path+"/complete", map[string]string{"status": "succeeded"}, nil)
	if err != nil || code != http.StatusNoContent && code != http.StatusForbidden {
		return fmt.Errorf("complete the update: %d, %w", code, err)
	}
	one.complete = code == http.StatusNoContent
	return nil
}

// state returns the resources of a version, or of the newest state if at is empty.
func (c *killClient) state(at string) (names []string, err error) {
	var d struct {
		Deployment struct{ Resources []struct{ ID string } }
	}
	code, err := c.call("", "GET", "/api/stacks/organization/p/"+c.stack+"/export"+at, nil, &d)
	if err != nil || code != http.StatusOK {
		return nil, fmt.Errorf("export%s: %d, %w", at, code, err)
	}
	for _, r := range d.Deployment.Resources {
		names = append(names, r.ID)
	}
	return names, nil
}

// follow continues after an update whose last write may or may not be stored.
func (c *killClient) follow() error {
	names, err := c.state("")
	c.current = names
	return err
}

// check compares the versions of the stack with those that the client knows.
func (c *killClient) check() error {
	var view struct {
		Version   int64
		Operation any `json:"currentOperation"`
	}
	for limit := time.Now().Add(killLease + 10*time.Second); ; time.Sleep(50 * time.Millisecond) {
		if _, err := c.call("", "GET", "/api/stacks/organization/p/"+c.stack, nil, &view); err != nil {
			return err
		}
		if view.Operation == nil {
			break
		}
		if time.Now().After(limit) {
			return fmt.Errorf("stack %s is still locked", c.stack)
		}
		view.Operation = nil
	}
	var last int64
	for version, one := range c.versions {
		last = max(last, version)
		got, err := c.state(fmt.Sprintf("/%d", version))
		if err != nil {
			return err
		}
		if !slices.Equal(got, one.acknowledged) && (one.complete || !slices.Equal(got, one.sent)) {
			return fmt.Errorf("stack %s has at version %d the resources %v, want %v or %v", c.stack, version, got,
				one.acknowledged, one.sent)
		}
	}
	if view.Version < last {
		return fmt.Errorf("stack %s has version %d, but version %d was given", c.stack, view.Version, last)
	}
	for version := range view.Version + 1 {
		if _, err := c.state(fmt.Sprintf("/%d", version)); err != nil {
			return fmt.Errorf("stack %s of version %d: %w", c.stack, view.Version, err)
		}
	}
	return nil
}

// TestKill kills the service at random times, while clients make updates with checkpoints and with journals. No state
// that the service has confirmed may be lost.
func TestKill(t *testing.T) {
	const stacks, updates, kills = 4, 200, 100
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	k := &killed{directory: servertest.DataDirectory(t), address: listener.Addr().String(), log: newOutput()}
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	defer http.DefaultClient.CloseIdleConnections()

	ctx, stop := context.WithCancel(t.Context())
	var killer sync.WaitGroup
	count := 0
	killer.Go(func() {
		defer stop()
		for ctx.Err() == nil {
			after := time.Minute // for the checks
			if count < kills {
				after = time.Duration(20+rand.IntN(150)) * time.Millisecond
			}
			if err := k.run(ctx, after); err != nil {
				t.Error(err)
				return
			}
			count++
		}
	})

	clients := make([]*killClient, stacks)
	var all errgroup.Group
	for i := range clients {
		c := newKillClient(k, i)
		clients[i] = c
		all.Go(func() error {
			if err := c.makeStack(); err != nil {
				return err
			}
			for n := range updates / stacks {
				if err := c.update(n%2 == 0, 1+rand.IntN(6)); err != nil {
					return err
				}
				if err := c.follow(); err != nil {
					return err
				}
			}
			return c.check()
		})
	}
	if err := all.Wait(); err != nil {
		t.Error(err)
	}
	stop()
	killer.Wait()
	complete, waited := 0, time.Duration(0)
	for _, c := range clients {
		waited = max(waited, c.waited)
		for _, one := range c.versions {
			if one.complete {
				complete++
			}
		}
	}
	t.Logf("%d kills; %d updates, %d of them complete; the longest wait for a start was %s", count, updates,
		complete, waited)
	if complete < updates/2 {
		t.Errorf("only %d updates are complete", complete)
	}

	db, err := sql.Open("sqlite", filepath.Join(k.directory, "cloud.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for query, want := range map[string]string{
		`PRAGMA integrity_check`: "ok",
		`SELECT count(*) FROM updates WHERE version IS NOT NULL
			AND (SELECT count(*) FROM states s
				WHERE s.stack = updates.stack AND s.version = updates.version) <> 1`: "0",
	} {
		var got string
		if err := db.QueryRowContext(t.Context(), query).Scan(&got); err != nil || got != want {
			t.Errorf("%s: %q, %v, want %q", query, got, err, want)
		}
	}
}
