package store

import (
	"strconv"
	"testing"
	"time"
)

// TestClaim claims two deployments of one stack. The database refuses the second claim while the first deployment
// has not ended, also if the caller has not checked this.
func TestClaim(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	err := open(t).Write(t.Context(), func(x *Tx) error {
		for _, statement := range []string{
			`INSERT INTO organizations (name) VALUES ('acme')`,
			`INSERT INTO pools (id, organization, name, description, created) VALUES ('pool', 'acme', 'name', '', 1)`,
			`INSERT INTO stacks (id, organization, project, name, created, secret_key)
				VALUES ('stack', 'acme', 'project', 'dev', 1, '')`,
		} {
			if _, err := x.exec(statement); err != nil {
				return err
			}
		}
		for i := range 2 {
			version, err := x.NextDeployment("stack")
			if err != nil || version != i+1 {
				t.Errorf("deployment %d has version %d, %v", i, version, err)
			}
			id := strconv.Itoa(version)
			if err := x.Enqueue(NewDeployment{
				ID: "d" + id, Job: "j" + id, Stack: "stack", Organization: "acme", Version: version,
				Definition: []byte{1},
			}, now); err != nil {
				return err
			}
		}
		waiting := func(want string) (seq int64) {
			w, found, err := x.NextWaiting("pool")
			if err != nil || found != (want != "") || w.ID != want {
				t.Errorf("the next waiting deployment is %+v, %v; want %q", w, err, want)
			}
			return w.Seq
		}
		claim := func(seq int64, want bool) {
			claimed, err := x.Claim(seq, "pool", "host", now)
			if err != nil || claimed != want {
				t.Errorf("claim of %d: %v, %v; want %v", seq, claimed, err, want)
			}
		}

		first := waiting("d1")
		claim(first, true)
		claim(first, false)
		waiting("")
		claim(first+1, false)
		if err := x.Requeue(first, now); err != nil {
			return err
		}
		claim(waiting("d1"), true)
		if err := x.SetJob(JobKey{DeploymentJob, first}, "succeeded", "steps", now); err != nil {
			return err
		}
		if _, err := x.Release("d1"); err != nil {
			return err
		}
		claim(waiting("d2"), true)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
