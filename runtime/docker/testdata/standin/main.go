// Command standin replaces the runner in tests of the executor: it reads a handoff,
// reports progress, and acts as the definition requests.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
)

// request is the content of the definition.
type request struct {
	Code  int    `json:"code"`
	Until string `json:"until"` // "", "term", "kill" or "memory", which allocates memory without end
	Note  string `json:"note"`  // written to standard error
}

func main() {
	handoff, err := runtime.ReadHandoff(os.Stdin)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(runtime.CodeUsage)
	}
	var w request
	if err := json.Unmarshal(handoff.Definition, &w); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(runtime.CodeUsage)
	}
	terms := make(chan os.Signal, 1)
	signal.Notify(terms, syscall.SIGTERM)
	report(runtime.Progress{Step: 0, Lines: handoff.SetupLines, Status: runtime.Succeeded})
	report(runtime.Progress{Step: 1, Lines: len(handoff.Definition), Status: runtime.Running})
	if w.Note != "" {
		fmt.Fprintln(os.Stderr, w.Note)
	}
	switch w.Until {
	case "term":
		<-terms
		report(runtime.Progress{Step: 1, Lines: 1, Status: runtime.Failed})
	case "memory":
		var all [][]byte
		for {
			more := make([]byte, 1<<20)
			for i := range more {
				more[i] = 1
			}
			all = append(all, more)
		}
	case "kill":
		for {
			time.Sleep(time.Hour)
		}
	}
	os.Exit(w.Code)
}

func report(p runtime.Progress) {
	text, err := json.Marshal(p)
	if err != nil {
		panic(err)
	}
	fmt.Println(string(text))
}
