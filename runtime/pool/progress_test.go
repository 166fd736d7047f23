package pool_test

import (
	"io"
	goruntime "runtime"
	"strings"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/runtimetest"
)

// zeros is an endless stream of the digit 0.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = '0'
	}
	return len(p), nil
}

// output returns a text in place of a line of progress.
func output(text string) runtimetest.TimedProgress {
	return runtimetest.TimedProgress{Raw: func() io.Reader { return strings.NewReader(text) }}
}

// line returns a text and a newline in place of a line of progress.
func line(text string) runtimetest.TimedProgress { return output(text + "\n") }

func TestReadStream(t *testing.T) {
	running := func(step, lines int) runtimetest.TimedProgress {
		return runtimetest.TimedProgress{Progress: runtime.Progress{Step: step, Lines: lines, Status: runtime.Running}}
	}
	step2 := running(2, 7)
	reads := 0
	rotated := func() io.Reader { // from the second read on, it has another first line and a new last line
		if reads++; reads == 1 {
			return strings.NewReader(`{"step":1,"lines":9,"status":"succeeded"}` + "\n" + `{"step":2,"lines":4}` + "\n")
		}
		return strings.NewReader("{\"step\":2,\"lines\":3}\n{\"step\":2,\"lines\":7}\n")
	}
	blank := strings.Repeat(" ", runtime.MaxProgressLine)
	whole := `{"step":2,"lines":7}`

	// Each runner is killed in step 2 after 7 lines. The lines that are ignored, forged or
	// incomplete must not change the agent's report of this end.
	for name, progress := range map[string][]runtimetest.TimedProgress{
		"step outside the definition is ignored":       {step2, line(`{"step":77,"lines":3,"status":"failed"}`)},
		"first step outside the definition is ignored": {step2, line(`{"step":4,"lines":0,"status":"running"}`)},
		"negative step is ignored":                     {step2, line(`{"step":-1,"lines":3,"status":"failed"}`)},
		"negative number of lines is ignored":          {step2, line(`{"step":2,"lines":-3,"status":"running"}`)},
		"unknown status is ignored":                    {step2, line(`{"step":3,"lines":3,"status":"won"}`)},
		"text is ignored and the next line is read":    {output("Hello from another program\n\n\x00\xff\n"), step2},
		"other JSON is ignored and the next line read": {line("[1,2]\n\"text\"\n{\"step\":\"two\"}"), step2},
		"forged success is corrected by the next line": {line(`{"step":3,"lines":3,"status":"succeeded"}`), step2},
		"forged failure is corrected by the next line": {line(`{"step":2,"lines":99,"status":"failed"}`), step2},
		"forged number of lines is corrected":          {line(`{"step":2,"lines":900719925474099}`), step2},
		"longest line is read":                         {line(whole + blank[len(whole)+1:])},
		"too long line is skipped up to its newline":   {step2, line(`{"step":3,"lines":9}` + blank + blank)},
		"line after a too long line is read":           {line(strings.Repeat("x", 1<<20)), step2},
		"too long line without a newline is ignored":   {step2, output(`{"step":3,"lines":9}` + blank + blank)},
		"complete last line without a newline is read": {running(2, 6), output(`{"step":2,"lines":7}`)},
		"incomplete last line is ignored":              {step2, output(`{"step":3,"lines`)},
		"line in a rotated log counts if it is later":  {{Raw: rotated}},
		"forged line stays corrected in a second stream": {
			line(`{"step":2,"lines":9,"status":"failed"}`), running(2, 6),
			{After: 30 * time.Minute, Progress: runtime.Progress{Step: 2, Lines: 7}},
		},
	} {
		play(t, name, spec(), func(st *fixture) {
			st.engine.SetScript("a", runtimetest.Script{
				Running: time.Hour, Exit: killed, Progress: progress,
				Breaks: []time.Duration{20 * time.Minute}, BreakErr: io.ErrUnexpectedEOF,
			})
			st.cloud.Add(job("a"), runtimetest.Definition("one", "two", "three"))
			st.start()
			wait(2 * time.Hour)
			st.wantStep("a", 2, runtime.Failed, "killed")
			st.wantStep("a", 3, runtime.NotStarted, "")
			st.wantOffset("a", 7)
		})
	}

	play(t, "adopted job has at most maxSteps steps", spec(), func(st *fixture) {
		st.leaveInstance("old", runtimetest.Script{
			Running: time.Hour, Exit: runtime.Exit{Code: runtime.CodeFailed},
			Progress: []runtimetest.TimedProgress{running(3, 0), line(`{"step":1000000,"status":"running"}`)},
		}, 0)
		st.cloud.AddClaimed(runtime.Job{ID: "old"}, runtimetest.Definition("one", "two", "three"))
		st.start()
		wait(2 * time.Hour)
		st.wantInLog("step=3 ")
	})

	play(t, "endless line does not grow the memory", spec(), func(st *fixture) {
		const flood, limit = 200 << 20, 8 << 20
		endless := func() io.Reader {
			return io.MultiReader(strings.NewReader(`{"step":1`), io.LimitReader(zeros{}, flood))
		}
		st.engine.SetScript("a", runtimetest.Script{Running: time.Hour, Exit: killed,
			Progress: []runtimetest.TimedProgress{{Raw: endless}, output("\n"), step2}})
		st.cloud.Add(job("a"), runtimetest.Definition("one", "two", "three"))
		var before, after goruntime.MemStats
		goruntime.ReadMemStats(&before)
		st.start()
		wait(time.Minute)
		goruntime.ReadMemStats(&after)
		allocated := after.TotalAlloc - before.TotalAlloc
		st.Logf("a line of %d MiB costs %d KiB of memory", flood>>20, allocated>>10)
		if allocated > limit {
			st.Errorf("a line of %d MiB costs %d MiB of memory, want at most %d", flood>>20, allocated>>20, limit>>20)
		}
		wait(2 * time.Hour)
		st.wantStep("a", 2, runtime.Failed, "killed")
	})

	play(t, "ignored lines are logged once", spec(), func(st *fixture) {
		st.startJobs(runtimetest.Script{Running: time.Hour, Progress: []runtimetest.TimedProgress{
			output(strings.Repeat("a text of the job\n", 1000)), line(strings.Repeat("x", 1<<20)), running(1, 1),
		}}, "a")
		wait(2 * time.Hour)
		st.wantLogTimes(1, "progress line ignored")
		st.wantLogTimes(0, "a text of the job") // the output of a step
	})
}
