package runner

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"
)

const maxNoted = 10 // interrupts that the log of a step names

// process is a snapshot of one process.
type process struct {
	processID
	parent int
	group  int
	name   string // of its program, cut to 15 bytes
	ended  bool   // it is a zombie
}

// processID identifies a process: the kernel reuses process ids.
type processID struct {
	pid   int
	began string // start time
}

// interrupter interrupts processes of a step. Each gets at most one SIGINT, because
// pulumi ends immediately at the second one. It selects:
//
//  1. Each process named pulumi. If one pulumi has started another, only the last is
//     selected, because the others are wrappers. Pulumi's plugins and their children are not
//     selected: pulumi starts them in separate process groups, and cancels and ends them
//     itself. Pulumi's ancestors (the shell, make, npm, a program that uses the Automation
//     API) are not selected either: a program that uses this API kills pulumi ten seconds
//     after it got a SIGINT.
//  2. If pulumi does not run in the step: the first processes below the shell that are not
//     shells and handle SIGINT, with their descendants in the process group. Ctrl-C in a
//     terminal interrupts these processes, too.
//
// Shells get no SIGINT, so traps for SIGTERM are executed. If the processes of the step
// cannot be listed, its whole process group gets one SIGINT.
type interrupter struct {
	group  int
	sent   map[processID]bool // processes that got a SIGINT
	pulumi bool               // pulumi ran
	others bool               // rule 2 must not be applied any more: only the first scan applies it
	waits  bool               // a process that was or will be interrupted has not ended, as of the last scan
	blind  bool               // processes cannot be listed

	known map[processID]time.Time // processes of the step, also in other groups, and when each was found
}

func newInterrupter(group int) interrupter {
	return interrupter{group: group, sent: map[processID]bool{}, known: map[processID]time.Time{}}
}

// any reports whether a process was interrupted.
func (i *interrupter) any() bool { return len(i.sent) > 0 || i.blind }

// scan interrupts the selected processes that were not interrupted before. A process that the
// first scan did not find is interrupted by the first scan after its startupTime. Before each of the first maxNoted
// interrupts of the step, it calls note with the name of the process.
func (i *interrupter) scan(note func(name string)) {
	first := !i.others
	members, err := i.members()
	if err != nil {
		if !i.blind {
			i.blind, i.waits = true, true
			note("the process group of the step")
			_ = syscall.Kill(-i.group, syscall.SIGINT)
		}
		return
	}

	selected := i.selectPulumi(members)
	if first && len(selected) == 0 {
		selected = i.selectOthers(members)
	}
	i.others = true
	postponed := false
	for _, p := range selected {
		switch {
		case i.sent[p.processID]:
			continue
		case !first && time.Since(i.known[p.processID]) < startupTime:
			postponed = true
			continue
		}
		i.sent[p.processID] = true // also if the signal cannot be sent
		if len(i.sent) <= maxNoted {
			note(fmt.Sprintf("%s (process %d)", p.name, p.pid))
		}
		_ = syscall.Kill(p.pid, syscall.SIGINT)
	}

	i.waits = postponed || slices.ContainsFunc(members, func(p process) bool { return i.sent[p.processID] && !p.ended })
}

// members returns the processes of the step: those of its process group, and the
// descendants of the shell and of known processes in other groups.
func (i *interrupter) members() ([]process, error) {
	all, err := listProcesses()
	if err != nil {
		return nil, err
	}
	children := map[int][]process{}
	var queue []process
	for _, p := range all {
		children[p.parent] = append(children[p.parent], p)
		if p.group == i.group || p.pid == i.group || !i.known[p.processID].IsZero() {
			queue = append(queue, p)
		}
	}
	found := map[int]bool{}
	var members []process
	for ; len(queue) > 0; queue = queue[1:] {
		if p := queue[0]; !found[p.pid] {
			found[p.pid] = true
			if i.known[p.processID].IsZero() {
				i.known[p.processID] = time.Now()
			}
			members = append(members, p)
			queue = append(queue, children[p.pid]...)
		}
	}
	return members, nil
}

// selectPulumi applies rule 1.
func (i *interrupter) selectPulumi(members []process) (selected []process) {
	byID := index(members)
	ancestors := map[int]bool{} // of selected processes; those named pulumi are wrappers
	for _, p := range members {
		if p.name != pulumiName || p.ended || below(byID, p, isPlugin) {
			continue
		}
		i.pulumi = true
		selected = append(selected, p)
		below(byID, p, func(up process) bool {
			ancestors[up.pid] = true
			return false // visit all
		})
	}
	return slices.DeleteFunc(selected, func(p process) bool { return ancestors[p.pid] })
}

// selectOthers applies rule 2.
func (i *interrupter) selectOthers(members []process) (selected []process) {
	byID := index(members)
	heads := map[int]bool{}
	for _, p := range members {
		if !p.ended && !isShell(p) && handlesInterrupt(p.pid) {
			heads[p.pid] = true
		}
	}
	for _, p := range members {
		inHead := heads[p.pid] || below(byID, p, func(up process) bool { return heads[up.pid] })
		if inHead && !p.ended && p.group == i.group {
			selected = append(selected, p)
		}
	}
	return selected
}

func (i *interrupter) findPulumi() bool {
	members, err := i.members()
	return err == nil && len(i.selectPulumi(members)) > 0
}

// alive reports whether an interrupted process still exists. After the end of the process
// group this is a process outside of the group.
func (i *interrupter) alive() bool {
	if !i.waits || i.blind {
		return false
	}
	for id := range i.sent {
		if !errors.Is(syscall.Kill(id.pid, 0), syscall.ESRCH) {
			return true
		}
	}
	return false
}

// kill kills the interrupted processes that still run.
func (i *interrupter) kill() {
	members, err := i.members()
	if err != nil {
		return
	}
	for _, p := range members {
		if i.sent[p.processID] {
			_ = syscall.Kill(p.pid, syscall.SIGKILL)
		}
	}
}

func index(members []process) map[int]process {
	byID := map[int]process{}
	for _, p := range members {
		byID[p.pid] = p
	}
	return byID
}

// below reports whether an ancestor of a process satisfies the condition is. Ancestors are
// looked up in byID.
func below(byID map[int]process, p process, is func(process) bool) bool {
	for range byID { // limits the number of steps if the list is not consistent
		up, ok := byID[p.parent]
		if !ok || up.pid == p.pid {
			return false
		}
		if is(up) {
			return true
		}
		p = up
	}
	return false
}

const pulumiName = "pulumi"

// isPlugin reports whether a process is a plugin of pulumi. Names are cut to 15 bytes.
func isPlugin(p process) bool {
	return slices.ContainsFunc([]string{
		"pulumi-language", "pulumi-resource", "pulumi-analyzer", "pulumi-converte", "pulumi-tool-",
	}, func(prefix string) bool { return strings.HasPrefix(p.name, prefix) })
}

// isShell reports whether the program of a process is a shell. A shell that runs a script may
// have the name of the script, so the program file counts too.
func isShell(p process) bool {
	shells := []string{"sh", "bash", "dash", "ash", "ksh", "mksh", "zsh", "fish", "busybox"}
	return slices.Contains(shells, p.name) || slices.Contains(shells, programOf(p.pid))
}
