package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/kube/kubetest"
	"github.com/cmwa-project/cmwa/runtime/kube/records"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// journalTuning is the tuning of a pool with a static token.
func journalTuning() runtime.Tuning { return runtime.Tuning{Token: secret.New("token-of-the-pool")} }

// journal is the journal of a pool.
type journal struct{ *records.Store }

// journalOf returns a journal of an executor for a pool with a static token.
func journalOf(e *Executor) journal { return journalWith(e, journalTuning()) }

// journalWith returns a journal of an executor for a pool with this tuning.
func journalWith(e *Executor, tuning runtime.Tuning) journal {
	j, ok := e.Journal(testJob().Pool, tuning)
	if !ok {
		panic("the pool has no journal")
	}
	return journal{j.(*records.Store)}
}

// testRecord returns the record of a job that was just claimed.
func testRecord(id string) runtime.Record {
	job := testJob()
	return runtime.Record{
		Job: id, WorkflowID: job.WorkflowID, Kind: job.Kind, Token: secret.New("token-of-" + id),
		OIDC: secret.New("oidc-of-" + id), Pool: job.Pool, PoolName: job.PoolName, Identity: job.Identity,
		Generation: job.Generation, Claimed: time.Now().UTC(), Stage: runtime.RecordClaimed,
	}
}

// add adds a record, which must succeed.
func (j journal) add(t testing.TB, id string) {
	t.Helper()
	if err := j.Add(t.Context(), testRecord(id)); err != nil {
		t.Fatal(err)
	}
}

// start records the Pod of a job, and that the job may run.
func (j journal) start(t testing.TB, id string, pod *corev1.Pod) {
	t.Helper()
	if err := j.PodOfJob(t.Context(), id, pod.Name, string(pod.UID)); err != nil {
		t.Fatal(err)
	}
	j.setStage(t, id, runtime.RecordHandedOff)
}

// setStage sets the stage of a record, which must succeed.
func (j journal) setStage(t testing.TB, id string, stage runtime.RecordStage) {
	t.Helper()
	if err := j.SetStage(t.Context(), id, stage); err != nil {
		t.Fatal(err)
	}
}

// remove removes a record, which must succeed.
func (j journal) remove(t testing.TB, id string) {
	t.Helper()
	if err := j.Remove(t.Context(), id); err != nil {
		t.Error(err)
	}
}

// recordedJob returns a journal with the record of job-1, which runs in the returned Pod.
func (a *agents) recordedJob(t testing.TB, e *Executor) (journal, *corev1.Pod) {
	t.Helper()
	j := journalOf(e)
	j.add(t, "job-1")
	pod := a.podOf(t, a.job(t, e, "job-1"))
	j.start(t, "job-1", pod)
	return j, pod
}

// podOf returns a Pod of the fake cluster.
func (a *agents) podOf(t testing.TB, name string) *corev1.Pod {
	t.Helper()
	for _, pod := range a.Pods(testNamespace) {
		if pod.Name == name {
			return &pod
		}
	}
	t.Fatalf("there is no Pod %s", name)
	return nil
}

// wantRecords checks for which jobs there are records in ConfigMaps.
func (a *agents) wantRecords(t testing.TB, jobs ...string) {
	t.Helper()
	var got []string
	for _, o := range a.Objects(configMaps, testNamespace) {
		got = append(got, o.GetAnnotations()[annotationJob])
	}
	slices.Sort(got)
	if !slices.Equal(got, jobs) {
		t.Errorf("there are records of %v, want %v", got, jobs)
	}
}

// wantRecord checks that there is one record, of this job, in this stage and with the job's
// tokens.
func wantRecord(t testing.TB, all []runtime.Record, err error, job string, stage runtime.RecordStage) {
	t.Helper()
	if len(all) == 1 && (all[0].Instance != "") != (stage == runtime.RecordHandedOff) {
		t.Errorf("the record of %s in stage %s names the Pod %q", job, stage, all[0].Instance)
	}
	if err != nil || len(all) != 1 || all[0].Job != job || all[0].Stage != stage ||
		all[0].Token.Reveal() != "token-of-"+job || all[0].OIDC.Reveal() != "oidc-of-"+job {
		t.Errorf("records: %v, %v, want that of %s in stage %s with its tokens", all, err, job, stage)
	}
}

// adoptRecords calls AdoptRecords. It first resets the time of the last list, so that
// AdoptRecords lists the records again.
func (j journal) adoptRecords(t testing.TB) ([]runtime.Record, error) {
	t.Helper()
	j.PodAdopted()
	return j.AdoptRecords(t.Context(), everyPool)
}

// wantListed checks that List returns one record, see wantRecord.
func (j journal) wantListed(t testing.TB, job string, stage runtime.RecordStage) {
	t.Helper()
	found, err := j.List(t.Context())
	wantRecord(t, found, err, job, stage)
}

// wantAdopted checks that one record is adopted, see wantRecord.
func (j journal) wantAdopted(t testing.TB, job string, stage runtime.RecordStage) {
	t.Helper()
	found, err := j.adoptRecords(t)
	wantRecord(t, found, err, job, stage)
}

// wantNoneAdopted checks that no record is adopted.
func (j journal) wantNoneAdopted(t testing.TB) {
	t.Helper()
	if found, err := j.adoptRecords(t); err != nil || len(found) > 0 {
		t.Errorf("adopted %v, %v, want nothing", found, err)
	}
}

func TestJournal(t *testing.T) {
	t.Run("record exists until the Pod of its job is removed", func(t *testing.T) {
		a, all := newAgents(t, "agent-x")
		j := journalOf(all[0])
		before := a.Requests()
		j.add(t, "job-1")
		text := fmt.Sprintf("%+v", a.Objects(configMaps, testNamespace))
		if strings.Contains(text, "token-of") || strings.Contains(text, "oidc-of") {
			t.Errorf("a token is readable: %s", text)
		}
		pod := a.podOf(t, a.job(t, all[0], "job-1"))
		j.start(t, "job-1", pod)
		j.setStage(t, "job-1", runtime.RecordHandedOff) // a second handoff
		j.setStage(t, "job-1", runtime.RecordReported)
		a.wantRecords(t, "job-1")
		if err := all[0].Remove(t.Context(), idOf(pod.Name, string(pod.UID)), 0); err != nil {
			t.Error(err)
		}
		a.wantRecords(t) // the cluster has deleted the record with the Pod
		j.remove(t, "job-1")
		got := difference(a.Requests(), before)
		if got["create configmaps"] != 1 || got["update configmaps"] != 1 || got["delete configmaps"] != 0 ||
			got["list configmaps"] != 0 {
			t.Errorf("requests: %v, want one create and one update of ConfigMaps", got)
		}
	})

	t.Run("job that does not start", func(t *testing.T) {
		a, all := newAgents(t, "agent-x")
		j := journalOf(all[0])
		j.add(t, "job-1")
		j.remove(t, "job-1")
		a.wantRecords(t)
		j.remove(t, "job-1") // a second time
		if err := j.SetStage(t.Context(), "job-1", runtime.RecordHandedOff); !errors.Is(err, runtime.ErrNoRecord) {
			t.Errorf("SetStage for a job without a record: got %v, want ErrNoRecord", err)
		}
	})

	t.Run("OIDC credentials", func(t *testing.T) {
		a, all := newAgents(t, "agent-x")
		if _, ok := all[0].Journal(testJob().Pool, runtime.Tuning{OIDCTokenFile: "file"}); ok {
			t.Error("got a journal, which would store tokens in ConfigMaps without sealing them")
		}
		if !strings.Contains(a.log.String(), "set kubernetes.handoff to secret") {
			t.Errorf("the log has no hint: %s", a.log.String())
		}

		// Secrets can hold the tokens.
		tuning := runtime.Tuning{OIDCTokenFile: "file"}
		tuning.Instance.Kubernetes.Handoff = handoffSecret
		journalWith(all[0], tuning).add(t, "job-1")
		a.wantRecords(t)
		journalWith(all[0], tuning).wantListed(t, "job-1", runtime.RecordClaimed)

		// Everyone who may write ConfigMaps could forge an unsealed record in a ConfigMap.
		forged := a.Objects(secrets, testNamespace)[0].(*corev1.Secret)
		a.PutObject(configMaps, &corev1.ConfigMap{
			ObjectMeta: forged.ObjectMeta, Data: map[string]string{recordKey: string(forged.Data[recordKey])},
		})
		if found, err := journalWith(all[0], tuning).List(t.Context()); err != nil || len(found) != 1 {
			t.Errorf("with a forged ConfigMap: listed %v, %v, want only the Secret's record", found, err)
		}
	})

	t.Run("pool has another token", func(t *testing.T) {
		a, all := newAgents(t, "agent-x")
		j := journalWith(all[0], runtime.Tuning{Token: secret.New("old")})
		j.Tune(journalTuning())
		j.add(t, "job-1")
		journalOf(all[0]).wantListed(t, "job-1", runtime.RecordClaimed)

		// An agent that cannot open a record leaves it, and logs a warning.
		late := journalWith(all[0], runtime.Tuning{Token: secret.New("new")})
		for range 2 {
			if found, err := late.List(t.Context()); err != nil || len(found) > 0 {
				t.Errorf("listed %v, %v, want nothing", found, err)
			}
			late.wantNoneAdopted(t)
		}
		a.wantRecords(t, "job-1")
		if !strings.Contains(a.log.String(), "cannot read the record of a job") {
			t.Errorf("the log does not have the warning: %s", a.log.String())
		}
	})

	t.Run("agent with an outdated token leaves the records of other agents", func(t *testing.T) {
		a, all := newAgents(t, "agent-x", "agent-y")
		a.agentThatDies(t, "job-1")
		late := journalWith(all[0], runtime.Tuning{Token: secret.New("old")})
		for range 3 {
			late.wantNoneAdopted(t)
		}
		a.wantRecords(t, "job-1")
		if n := strings.Count(a.log.String(), "cannot read the record of a job"); n != 1 {
			t.Errorf("the log has %d warnings, want 1: %s", n, a.log.String())
		}

		// An agent with the present token adopts it.
		journalOf(all[1]).wantAdopted(t, "job-1", runtime.RecordClaimed)
	})
}

// loseRecords breaks the connections of all requests for records. Those with this verb are served.
func loseRecords(verb string) func(kubetest.Request) *kubetest.Fault {
	return func(r kubetest.Request) *kubetest.Fault {
		if r.Resource != configMaps {
			return nil
		}
		return &kubetest.Fault{After: r.Verb == verb}
	}
}

func TestJournalFaults(t *testing.T) {
	// Each fault is injected into the first create, and if Add succeeds, into the first
	// update and the first delete.
	refused := kubetest.Fault{Status: http.StatusForbidden, Message: "cannot create resource configmaps"}
	for name, c := range map[string]struct {
		fault kubetest.Fault
		fails bool
	}{
		"response is lost":      {fault: kubetest.Fault{After: true}},
		"server is unavailable": {fault: kubetest.Fault{Status: http.StatusServiceUnavailable, Message: "away"}},
		"right is missing":      {fault: refused, fails: true},
		"answer is invalid":     {fault: kubetest.Fault{Status: 200, Page: "<html>", MediaType: "text/html"}},
	} {
		t.Run(name, func(t *testing.T) {
			a, all := newAgents(t, "agent-x")
			j := journalOf(all[0])
			a.Inject(failFirst(1, "create", c.fault))
			err := j.Add(t.Context(), testRecord("job-1"))
			if (err != nil) != c.fails {
				t.Fatalf("add: %v", err)
			}
			if c.fails {
				a.wantRecords(t)
				return
			}
			pod := a.podOf(t, a.job(t, all[0], "job-1"))
			a.Inject(failFirst(1, "update", c.fault))
			j.start(t, "job-1", pod)
			journalOf(all[0]).wantListed(t, "job-1", runtime.RecordHandedOff)
			a.Inject(failFirst(1, "delete", c.fault))
			j.remove(t, "job-1")
			a.wantRecords(t)
		})
	}

	t.Run("version of a record whose create response is lost cannot be read at first", func(t *testing.T) {
		a, all := newAgents(t, "agent-x")
		create := failFirst(1, "create", kubetest.Fault{After: true})
		list := failFirst(1, "list", kubetest.Fault{Status: http.StatusServiceUnavailable, Message: "away"})
		a.Inject(func(r kubetest.Request) *kubetest.Fault {
			if r.Resource != configMaps {
				return nil
			}
			return cmp.Or(create(r), list(r))
		})
		j := journalOf(all[0])
		j.add(t, "job-1")
		journalOf(all[0]).wantListed(t, "job-1", runtime.RecordClaimed)
	})

	t.Run("stage is stored again after a lost response", func(t *testing.T) {
		a, all := newAgents(t, "agent-x")
		j, _ := a.recordedJob(t, all[0])
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		a.Inject(loseRecords("update"))
		if err := j.SetStage(ctx, "job-1", runtime.RecordClaimed); err == nil {
			t.Fatal("SetStage returned no error without a response")
		}
		a.Inject(nil)
		j.setStage(t, "job-1", runtime.RecordHandedOff)
		journalOf(all[0]).wantListed(t, "job-1", runtime.RecordHandedOff)
	})

	t.Run("record that may exist is removed before the job runs", func(t *testing.T) {
		a, all := newAgents(t, "agent-x")
		j := journalOf(all[0])
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		a.Inject(loseRecords("create"))
		if err := j.Add(ctx, testRecord("job-1")); err == nil {
			t.Fatal("Add returned no error without a response")
		}
		a.wantRecords(t, "job-1")
		a.Inject(nil)
		if err := j.PodOfJob(t.Context(), "job-1", "pod", ""); err != nil {
			t.Error(err)
		}
		a.wantRecords(t)
	})
}

func TestJournalList(t *testing.T) {
	t.Run("restarted container", func(t *testing.T) {
		a, all := newAgents(t, "agent-x", "agent-y")
		j := journalOf(all[0])
		j.add(t, "job-1")
		journalOf(all[1]).add(t, "job-2")
		again := journalOf(all[0])
		again.wantListed(t, "job-1", runtime.RecordClaimed)

		// The restarted agent starts the job, and the job ends.
		pod := a.podOf(t, a.job(t, all[0], "job-1"))
		again.start(t, "job-1", pod)
		a.Drop(testNamespace, pod.Name)
		again.remove(t, "job-1")
		a.wantRecords(t, "job-2")
	})

	t.Run("Pod without a handoff", func(t *testing.T) {
		a, all := newAgents(t, "agent-x")
		_, pod := a.recordedJob(t, all[0])
		journalOf(all[0]).wantListed(t, "job-1", runtime.RecordHandedOff)

		// The agent was killed before it could send the handoff.
		a.Change(testNamespace, pod.Name, func(p *corev1.Pod) { delete(p.Annotations, annotationHandoff) })
		again := journalOf(all[0])
		again.wantListed(t, "job-1", runtime.RecordClaimed)
		a.Drop(testNamespace, pod.Name)
		a.wantRecords(t, "job-1")
		again.start(t, "job-1", a.podOf(t, a.job(t, all[0], "job-1")))
	})

	t.Run("Pod of a large handoff", func(t *testing.T) {
		a, all := newAgents(t, "agent-x")
		_, pod := a.recordedJob(t, all[0])

		// The kubelet may read its ConfigMap although the annotation is missing.
		a.Change(testNamespace, pod.Name, func(p *corev1.Pod) {
			delete(p.Annotations, annotationHandoff)
			p.Spec.Volumes = []corev1.Volume{inConfigMap.volume(p.Name)}
		})
		journalOf(all[0]).wantListed(t, "job-1", runtime.RecordHandedOff)
	})

	t.Run("record of another pool whose job is about to get its handoff stays unchanged", func(t *testing.T) {
		a, all := newAgents(t, "agent-x")
		_, pod := a.recordedJob(t, all[0])
		a.Change(testNamespace, pod.Name, func(p *corev1.Pod) { delete(p.Annotations, annotationHandoff) })

		// The pool gets another name. The new pool starts while the old one starts the job.
		renamed, ok := all[0].Journal("renamed-0123abcd", journalTuning())
		if !ok {
			t.Fatal("the pool has no journal")
		}
		if found, err := renamed.List(t.Context()); err != nil || len(found) > 0 {
			t.Errorf("listed %v, %v, want no record of the other pool", found, err)
		}
		a.Change(testNamespace, pod.Name, func(p *corev1.Pod) { p.Annotations[annotationHandoff] = "sealed" })
		journalOf(all[0]).wantListed(t, "job-1", runtime.RecordHandedOff)
	})

	t.Run("stage is set to claimed again", func(t *testing.T) {
		a, all := newAgents(t, "agent-x")
		j, pod := a.recordedJob(t, all[0])
		a.Drop(testNamespace, pod.Name)
		a.wantRecords(t)
		j.setStage(t, "job-1", runtime.RecordClaimed)
		journalOf(all[0]).wantListed(t, "job-1", runtime.RecordClaimed)
	})

	t.Run("Pod that cannot be read", func(t *testing.T) {
		a, all := newAgents(t, "agent-x")
		a.recordedJob(t, all[0])
		a.Inject(func(r kubetest.Request) *kubetest.Fault {
			if r.Resource != pods {
				return nil
			}
			return &kubetest.Fault{Status: http.StatusInternalServerError, Message: "away"}
		})
		if found, err := journalOf(all[0]).List(t.Context()); err == nil {
			t.Errorf("listed %v, want an error", found)
		}
	})

	t.Run("damaged objects", func(t *testing.T) {
		a, all := newAgents(t, "agent-x")
		journalOf(all[0]).add(t, "job-1")
		a.Objects(configMaps, testNamespace)[0].(*corev1.ConfigMap).Data = nil
		if found, err := journalOf(all[0]).List(t.Context()); err != nil || len(found) > 0 {
			t.Errorf("listed %v, %v, want nothing", found, err)
		}
	})
}

func TestJournalAdopt(t *testing.T) {
	t.Run("exactly one agent adopts a record", func(t *testing.T) {
		a, all := newAgents(t, "agent-x", "agent-y", "agent-z")
		for round := range 20 {
			job := fmt.Sprint("job-", round)
			dead := a.agentThatDies(t, job)
			winners := make(chan string, len(all))
			var group sync.WaitGroup
			for _, e := range all {
				group.Go(func() {
					j := journalOf(e)
					found, err := j.adoptRecords(t)
					if err != nil || len(found) == 0 {
						return
					}
					wantRecord(t, found, err, job, runtime.RecordClaimed)
					winners <- e.self.owner.Name
					j.remove(t, job)
				})
			}
			group.Wait()
			if len(winners) != 1 {
				t.Errorf("%d agents have adopted %s, want 1", len(winners), job)
			}
			if err := dead.SetStage(t.Context(), job, runtime.RecordHandedOff); !errors.Is(err, runtime.ErrGone) {
				t.Errorf("SetStage of the old agent: got %v, want ErrGone", err)
			}
		}
		a.wantRecords(t)
	})

	t.Run("records of existing agents and of other Deployments", func(t *testing.T) {
		a, all := newAgents(t, "agent-x", "agent-y")
		journalOf(all[0]).add(t, "job-1")
		a.put("other-1", "other")
		journalOf(a.agent(t, "other-1")).add(t, "job-2")
		a.Drop(testNamespace, "other-1")
		journalOf(all[1]).wantNoneAdopted(t)
		a.wantRecords(t, "job-1", "job-2")
	})

	t.Run("record follows the Pod", func(t *testing.T) {
		a, all := newAgents(t, "agent-x", "agent-y", "agent-z")
		_, pod := a.recordedJob(t, all[0])
		a.Drop(testNamespace, "agent-x")
		third := journalOf(all[2])
		third.wantNoneAdopted(t)
		awaitOwner(t, all[1], pod.Name, all[0].self.owner)
		wantAdopted(t, all[1], "job-1")
		third.wantNoneAdopted(t)
		journalOf(all[1]).wantAdopted(t, "job-1", runtime.RecordHandedOff)
	})

	t.Run("record is adopted directly after the Pod", func(t *testing.T) {
		a, all := newAgents(t, "agent-x", "agent-y")
		adopter := journalOf(all[1])
		if found, err := adopter.AdoptRecords(t.Context(), everyPool); err != nil || len(found) > 0 {
			t.Errorf("adopted %v, %v, want nothing", found, err)
		}
		_, pod := a.recordedJob(t, all[0])
		awaitOwner(t, all[1], pod.Name, all[0].self.owner)
		a.Drop(testNamespace, "agent-x")
		wantAdopted(t, all[1], "job-1")
		found, err := adopter.AdoptRecords(t.Context(), everyPool)
		wantRecord(t, found, err, "job-1", runtime.RecordHandedOff)
	})

	t.Run("old agent does not change a record that another agent has adopted", func(t *testing.T) {
		a, all := newAgents(t, "agent-x")
		dead := a.agentThatDies(t, "job-1")
		adopter := journalOf(all[0])
		adopter.wantAdopted(t, "job-1", runtime.RecordClaimed)
		if err := dead.Remove(t.Context(), "job-1"); !errors.Is(err, runtime.ErrGone) {
			t.Errorf("Remove of the old agent: got %v, want ErrGone", err)
		}
		a.wantRecords(t, "job-1")

		// The same holds after the new agent has removed the record.
		dead = a.agentThatDies(t, "job-2")
		if _, err := adopter.adoptRecords(t); err != nil {
			t.Error(err)
		}
		adopter.remove(t, "job-2")
		if err := dead.SetStage(t.Context(), "job-2", runtime.RecordHandedOff); !errors.Is(err, runtime.ErrGone) {
			t.Errorf("SetStage of the old agent: got %v, want ErrGone", err)
		}
		if err := dead.Remove(t.Context(), "job-2"); err == nil {
			t.Error("Remove of the old agent returned no error: it may run the job without a record")
		}
	})

	// The process of an agent whose Pod was deleted by force runs for a moment longer.
	t.Run("record that its old agent changes meanwhile is adopted", func(t *testing.T) {
		for _, times := range []int{1, 100} {
			a, all := newAgents(t, "agent-x")
			a.agentThatDies(t, "job-1")
			j := journalOf(all[0])
			changed := kubetest.Fault{Status: http.StatusConflict, Message: "the object has been modified"}
			a.Inject(failFirst(times, "update", changed))
			found, err := j.adoptRecords(t)
			if times > 1 {
				if err == nil {
					t.Errorf("adopted %v without an error, although the record of a job is missing", found)
				}
				a.Inject(nil)
				found, err = j.adoptRecords(t)
			}
			wantRecord(t, found, err, "job-1", runtime.RecordClaimed)
		}
	})

	t.Run("own record of a job that has ended is not adopted before the cluster deletes it", func(t *testing.T) {
		a, all := newAgents(t, "agent-x")
		_, pod := a.recordedJob(t, all[0])
		again := journalOf(all[0])
		again.wantListed(t, "job-1", runtime.RecordHandedOff)

		// The job ends, and the garbage collector is slow.
		record := a.Objects(configMaps, testNamespace)[0]
		if err := all[0].Remove(t.Context(), idOf(pod.Name, string(pod.UID)), 0); err != nil {
			t.Error(err)
		}
		again.remove(t, "job-1")
		a.PutObject(configMaps, record)
		a.wantRecords(t, "job-1")
		for range 2 {
			again.wantNoneAdopted(t)
			// This also holds while the adoption of another record fails.
			a.agentThatDies(t, "job-2")
			a.Inject(failFirst(1, "update", kubetest.Fault{After: true}))
			if found, err := again.adoptRecords(t); err == nil || len(found) > 0 {
				t.Errorf("adopted %v, %v, want an error because the response was lost", found, err)
			}
			again.wantAdopted(t, "job-2", runtime.RecordClaimed)
			again.remove(t, "job-2")
		}
	})

	t.Run("requests while there is nothing to adopt", func(t *testing.T) {
		a, all := newAgents(t, "agent-x")
		j, before := journalOf(all[0]), a.Requests()
		for range 10 {
			if _, err := j.AdoptRecords(t.Context(), everyPool); err != nil {
				t.Fatal(err)
			}
		}
		if got := difference(a.Requests(), before); got["list configmaps"] != 1 || len(got) != 1 {
			t.Errorf("requests: %v, want one list of ConfigMaps", got)
		}
	})

	t.Run("record that cannot be read is read again with another token", func(t *testing.T) {
		a, all := newAgents(t, "agent-x")
		a.agentThatDies(t, "job-1")
		j := journalWith(all[0], runtime.Tuning{Token: secret.New("another token")})
		j.wantNoneAdopted(t)
		before := a.Requests()
		j.wantNoneAdopted(t)
		if got := difference(a.Requests(), before); got["list configmaps"] != 1 || len(got) != 1 {
			t.Errorf("requests: %v, want one list of ConfigMaps", got)
		}
		j.Tune(journalTuning())
		j.wantAdopted(t, "job-1", runtime.RecordClaimed)
	})

	t.Run("record that no agent adopts is swept", func(t *testing.T) {
		a, all := newAgents(t, "agent-x")
		a.put("other-1", "other")
		journalOf(a.agent(t, "other-1")).add(t, "job-1")
		a.Drop(testNamespace, "other-1")
		if _, err := all[0].Sweep(t.Context(), nil); err != nil {
			t.Error(err)
		}
		a.wantRecords(t, "job-1")
		o := a.Objects(configMaps, testNamespace)[0]
		o.GetAnnotations()[annotationNeeded] = time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)
		if removed, err := all[0].Sweep(t.Context(), nil); err != nil || len(removed) != 1 {
			t.Errorf("swept %v, %v, want the record", removed, err)
		}
		a.wantRecords(t)
	})
}

// agentThatDies returns the journal of an agent that has claimed a job, and whose Pod no
// longer exists.
func (a *agents) agentThatDies(t testing.TB, job string) journal {
	t.Helper()
	name := "dead-" + job
	a.put(name, "agent")
	j := journalOf(a.agent(t, name))
	j.add(t, job)
	a.Drop(testNamespace, name)
	return j
}
