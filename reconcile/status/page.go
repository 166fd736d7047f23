package status

import (
	"bytes"
	"embed"
	"fmt"
	"html/template"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/schema/printable"
)

//go:embed page
var pageFiles embed.FS

const (
	// pagePolicy lets a page load only the agent's own script and style sheet, and send nothing anywhere.
	pagePolicy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; " +
		"form-action 'none'; frame-ancestors 'none'"

	pageCheck   = time.Second      // interval at which a stream looks for a change of the status
	pageRefresh = 10 * time.Second // after which it sends the page without a change, because of the ages in it
	pageStreams = 20               // streams at a time

	// pageWrite limits the time of one write to a browser.
	pageWrite = 10 * time.Second
)

// page shows a Document as HTML. It changes nothing.
type page struct {
	document func(time.Time) Document
	streams  chan struct{} // has an element for each stream that is open
}

// pageView is what the template shows.
type pageView struct {
	Document

	At, Since func(time.Time) string // see times
	Jobs      int
}

// pageTemplate parses the template at the first request. A package variable would do this at each start of cmwa, for
// example for cmwa vet.
var pageTemplate = sync.OnceValue(func() *template.Template {
	return template.Must(template.New("page.html").Funcs(template.FuncMap{
		"clean":   printable.Text,
		"changes": changeTexts,
		"join":    func(texts []string) string { return strings.Join(texts, ", ") },
		"title":   jobTitle,
		"phases":  jobPhases,
		"stages":  stageTexts,
		"took":    func(j EndedJob) string { return duration(j.EndedAt.Sub(j.Since)) },
	}).ParseFS(pageFiles, "page/page.html"))
})

func newPage(document func(time.Time) Document) *page {
	return &page{document: document, streams: make(chan struct{}, pageStreams)}
}

// handle adds the page's files and its stream.
func (p *page) handle(mux *http.ServeMux) {
	mux.HandleFunc("GET /page/{file}", func(w http.ResponseWriter, r *http.Request) {
		if file := r.PathValue("file"); file == "page.js" || file == "page.css" {
			securePage(w)
			http.ServeFileFS(w, r, pageFiles, "page/"+file)
			return
		}
		http.NotFound(w, r)
	})
	mux.HandleFunc("GET /page/events", p.stream)
}

// wantsPage reports whether a client, such as a browser, prefers HTML. Others, such as curl, get text.
func wantsPage(r *http.Request) bool { return strings.Contains(r.Header.Get("Accept"), "text/html") }

func securePage(w http.ResponseWriter) {
	w.Header().Set("Content-Security-Policy", pagePolicy)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Referrer-Policy", "no-referrer")
	w.Header().Set("Cache-Control", "no-store")
}

// write writes the whole page.
func (p *page) write(w http.ResponseWriter) {
	text, err := render("page.html", p.document(time.Now()))
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	securePage(w)
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = w.Write(text)
}

// render executes a template of the page.
func render(name string, d Document) ([]byte, error) {
	format := relativeTo(d.Now)
	view := pageView{Document: d, At: format.at, Since: format.since}
	for _, pool := range d.Pools {
		view.Jobs += len(pool.Jobs)
	}
	var b bytes.Buffer
	err := pageTemplate().ExecuteTemplate(&b, name, view)
	return b.Bytes(), err
}

// stream sends the content of the page at each change, as a server-sent event (HTML Standard, 9.2), until the client
// closes the connection or the server shuts down.
func (p *page) stream(w http.ResponseWriter, r *http.Request) {
	select {
	case p.streams <- struct{}{}:
		defer func() { <-p.streams }()
	default:
		http.Error(w, "too many open pages", http.StatusServiceUnavailable)
		return
	}
	securePage(w)
	w.Header().Set("Content-Type", "text/event-stream")
	control := http.NewResponseController(w)
	tick := time.NewTicker(pageCheck)
	defer tick.Stop()
	var sent []byte
	var sentAt time.Time
	for {
		now := time.Now()
		d := p.document(now)
		d.Now = sentAt // The ages are those of the last page: only another change makes a difference.
		text, err := render("content", d)
		if err == nil && (sentAt.IsZero() || !bytes.Equal(text, sent) || now.Sub(sentAt) >= pageRefresh) {
			d.Now, sentAt = now.UTC(), now.UTC()
			if sent, err = render("content", d); err == nil {
				event := "data: " + strings.ReplaceAll(string(sent), "\n", "\ndata: ") + "\n\n"
				_ = control.SetWriteDeadline(now.Add(pageWrite))
				if _, err = w.Write([]byte(event)); err == nil {
					err = control.Flush()
				}
			}
		}
		if err != nil {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-tick.C:
		}
	}
}

// pagePhase is a phase in the bar of a job.
type pagePhase struct{ Name, Class string }

// jobPhases returns the phases of a job: those that it had, the present one, and those that follow. A job stops only if
// it is cancelled, or if its time is over.
func jobPhases(j Job) (all []pagePhase) {
	class := "past"
	for _, phase := range []runtime.Phase{
		runtime.Claimed, runtime.Starting, runtime.Started, runtime.Stopping, runtime.Done,
	} {
		switch {
		case string(phase) == j.Phase:
			all = append(all, pagePhase{j.Phase, "now"})
			class = "next"
		case phase != runtime.Stopping:
			all = append(all, pagePhase{string(phase), class})
		}
	}
	return all
}

// stageTexts returns how long each stage of a job took that has ended.
func stageTexts(j Job) string {
	var texts []string
	for _, s := range j.Stages {
		texts = append(texts, fmt.Sprintf("%s %s", strings.ReplaceAll(s.Stage, "_", " "), shortTime(s.Seconds)))
	}
	return strings.Join(texts, ", ")
}

// shortTime returns seconds with two digits, and from a minute on as in other texts.
func shortTime(seconds float64) string {
	switch {
	case seconds < 10:
		return fmt.Sprintf("%.1fs", seconds)
	case seconds < 60:
		return fmt.Sprintf("%.0fs", seconds)
	}
	return duration(time.Duration(seconds * float64(time.Second)))
}
