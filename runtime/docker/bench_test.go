package docker

import (
	"slices"
	"testing"
	"time"

	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"
)

// BenchmarkStart alternately starts a job, and a container with only the calls of docker
// run: create, attach, wait, start. It reports the medians of both times and their difference.
func BenchmarkStart(b *testing.B) {
	e := newExecutor(b)
	first := newJob(b, e, `{}`)
	id, _ := start(b, e, first) // fills the volume
	if err := e.Remove(b.Context(), id, 0); err != nil {
		b.Fatal(err)
	}
	runner, err := e.programs.find(first.Tuning.Instance.WorkingDirectory, e.architecture)
	if err != nil {
		b.Fatal(err)
	}
	var ours, alone []time.Duration
	for b.Loop() {
		job := newJob(b, e, `{"until": "term"}`)
		begin := time.Now()
		id, _ := start(b, e, job)
		ours = append(ours, time.Since(begin))
		if err := e.Remove(b.Context(), id, 0); err != nil {
			b.Fatal(err)
		}
		begin = time.Now()
		id = e.bare(b,
			e.containerOptions(job, image{name: testImage}, newName(job.ID), "", e.volumeMount(runner, true)))
		alone = append(alone, time.Since(begin))
		if err := e.Remove(b.Context(), id, 0); err != nil {
			b.Fatal(err)
		}
	}
	median := func(all []time.Duration) float64 {
		slices.Sort(all)
		return float64(all[len(all)/2]) / float64(time.Millisecond)
	}
	b.ReportMetric(median(ours), "ms/start")
	b.ReportMetric(median(alone), "ms/alone")
	b.ReportMetric(median(ours)-median(alone), "ms/added")
}

// bare starts a container with the calls of docker run.
func (e *Executor) bare(b *testing.B, options client.ContainerCreateOptions) string {
	b.Helper()
	options.HostConfig.Mounts = []mount.Mount{}
	options.Config.Entrypoint = []string{"/bin/sleep", "60"}
	options.Config.Cmd = nil
	made, err := e.engine.ContainerCreate(b.Context(), options)
	if err != nil {
		b.Fatal(err)
	}
	attached, err := e.engine.ContainerAttach(b.Context(), made.ID,
		client.ContainerAttachOptions{Stream: true, Stdin: true})
	if err != nil {
		b.Fatal(err)
	}
	attached.Close()
	ended := e.engine.ContainerWait(b.Context(), made.ID, client.ContainerWaitOptions{Condition: "next-exit"})
	if _, err := e.engine.ContainerStart(b.Context(), made.ID, client.ContainerStartOptions{}); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		select {
		case <-ended.Result:
		case <-ended.Error:
		}
	})
	return made.ID
}
