// Command standin stands in for the runner where a test is about the engine: it
// reads a handover, says progress, and does what the definition asks for.
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

// wish is what a test's definition asks for.
type wish struct {
	Code  int    `json:"code"`
	Until string `json:"until"` // "", "term", "kill" or "memory", which takes all there is
	Note  string `json:"note"`  // written to standard error
}

func main() {
	handover, err := runtime.ReadHandover(os.Stdin)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(runtime.CodeUsage)
	}
	var w wish
	if err := json.Unmarshal(handover.Definition, &w); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(runtime.CodeUsage)
	}
	terms := make(chan os.Signal, 1)
	signal.Notify(terms, syscall.SIGTERM)
	say(runtime.Progress{Step: 0, Lines: handover.SetupLines, Status: runtime.Succeeded})
	say(runtime.Progress{Step: 1, Lines: len(handover.Definition), Status: runtime.Running})
	if w.Note != "" {
		fmt.Fprintln(os.Stderr, w.Note)
	}
	switch w.Until {
	case "term":
		<-terms
		say(runtime.Progress{Step: 1, Lines: 1, Status: runtime.Failed})
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

func say(p runtime.Progress) {
	text, err := json.Marshal(p)
	if err != nil {
		panic(err)
	}
	fmt.Println(string(text))
}
