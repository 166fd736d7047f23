//go:build killpoints

package killpoint

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// childVariable is set for a child process: there, TestChoose calls Hit and Write.
const childVariable = "CMWA_TEST_CHILD"

func TestChoose(t *testing.T) {
	if os.Getenv(childVariable) != "" {
		for range 3 {
			Hit(Journalled)
			_, _ = os.Stdout.WriteString("<hit>")
		}
		_, _ = Write(HandoffHalf, os.Stdout, []byte("<halfhalf>"))
		return
	}
	for value, want := range map[string]struct {
		killed bool
		code   int
		output string
	}{
		"":              {output: "<hit><hit><hit><halfhalf>"},
		"journalled":    {killed: true, code: -1},
		"journalled:1":  {killed: true, code: -1},
		"journalled:3":  {killed: true, code: -1, output: "<hit><hit>"},
		"journalled:4":  {output: "<hit><hit><hit><halfhalf>"},
		"handoff_half":  {killed: true, code: -1, output: "<hit><hit><hit><half"},
		"started":       {output: "<hit><hit><hit><halfhalf>"},
		"journaled":     {code: exitUsage, output: "CMWA_KILL_AT=journaled: the value must be the name"},
		"journalled:0":  {code: exitUsage, output: "or NAME:N"},
		"journalled:no": {code: exitUsage, output: "or NAME:N"},
	} {
		t.Run("variable "+value, func(t *testing.T) {
			var out bytes.Buffer
			cmd := exec.Command(os.Args[0], "-test.run=^TestChoose$")
			cmd.Env = append(os.Environ(), childVariable+"=1", Variable+"="+value)
			cmd.Stdout, cmd.Stderr = &out, &out
			_ = cmd.Run()
			status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
			if killed := ok && status.Signaled() && status.Signal() == syscall.SIGKILL; killed != want.killed ||
				cmd.ProcessState.ExitCode() != want.code || !strings.Contains(out.String(), want.output) ||
				want.killed && out.String() != want.output {
				t.Errorf("killed is %v, the exit code is %d, and it prints %q; want %+v",
					killed, cmd.ProcessState.ExitCode(), &out, want)
			}
		})
	}
}
