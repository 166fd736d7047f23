package page

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

//go:embed templates static
var files embed.FS

// policy is the Content-Security-Policy of every response.
const policy = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// Seconds between two updates of a page by the script.
const (
	refreshNow  = "0"  // a log with more lines
	refreshLog  = "1"  // a log of what runs
	refreshSoon = "3"  // deployments, and a stack while something runs
	refreshSlow = "15" // stacks and pools
)

// pages serves the pages.
type pages struct {
	source    Source
	log       *slog.Logger
	secure    bool // cookies are for HTTPS only, also if a proxy ends TLS
	templates map[string]*template.Template
}

// New returns the handler of the pages. Origin is the public URL of the service, or empty if that is the URL
// of the calls.
func New(source Source, origin string, log *slog.Logger) (http.Handler, error) {
	p := &pages{source: source, log: log, secure: strings.HasPrefix(origin, "https://"),
		templates: map[string]*template.Template{}}
	names, err := fs.Glob(files, "templates/*.html")
	if err != nil {
		return nil, fmt.Errorf("list the templates: %w", err)
	}
	base, err := template.New("").Funcs(functions()).ParseFS(files, "templates/layout.html", "templates/parts.html")
	if err != nil {
		return nil, fmt.Errorf("read the templates: %w", err)
	}
	for _, name := range names {
		one, err := template.Must(base.Clone()).ParseFS(files, name)
		if err != nil {
			return nil, fmt.Errorf("read the templates: %w", err)
		}
		p.templates[strings.TrimSuffix(strings.TrimPrefix(name, "templates/"), ".html")] = one
	}

	const stack = "/{org}/{project}/{stack}"
	mux := http.NewServeMux()
	mux.HandleFunc("GET /static/{file}", serveFile)
	mux.HandleFunc("GET /sign-in", p.showSignIn)
	mux.HandleFunc("POST /sign-in", p.signIn)
	mux.HandleFunc("POST /sign-out", p.signOut)
	mux.Handle("GET /{$}", p.page(p.deployments))
	mux.Handle("GET /stacks", p.page(p.stacks))
	mux.Handle("GET /pools", p.page(p.pools))
	mux.Handle("GET "+stack, p.page(p.stack))
	mux.Handle("GET "+stack+"/resources", p.page(p.resources))
	mux.Handle("GET "+stack+"/updates", p.page(p.updates))
	mux.Handle("GET "+stack+"/updates/{update}", p.page(p.update))
	mux.Handle("GET "+stack+"/previews/{update}", p.page(p.update))
	mux.Handle("GET "+stack+"/deployments/{version}", p.page(p.deployment))
	mux.HandleFunc("/", p.missing)

	guard := http.NewCrossOriginProtection()
	if origin != "" {
		public, err := url.Parse(origin)
		if err != nil {
			return nil, fmt.Errorf("read the public URL: %w", err)
		}
		if err := guard.AddTrustedOrigin(public.Scheme + "://" + public.Host); err != nil {
			return nil, fmt.Errorf("read the public URL: %w", err)
		}
	}
	return headers(guard.Handler(mux)), nil
}

// headers adds the headers that protect every response. Referrer-Policy is not no-referrer, because browsers
// then send form posts without their origin.
func headers(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Referrer-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		next.ServeHTTP(w, r)
	})
}

// serveFile serves an embedded file. Browsers keep it for a minute: after an upgrade of the service, pages may have
// the old style for that time.
func serveFile(w http.ResponseWriter, r *http.Request) {
	name := "static/" + r.PathValue("file")
	if _, err := fs.Stat(files, name); err == nil {
		w.Header().Set("Cache-Control", "max-age=60")
	}
	http.ServeFileFS(w, r, files, name)
}

// view is what a template gets.
type view struct {
	template string
	Title    string
	Section  string // of the navigation: deployments, stacks or pools
	User     string // empty before the sign-in
	Refresh  string // seconds until the script updates the page; empty for never
	Query    url.Values
	Stack    StackName // in the path; zero for pages that belong to no stack
	Data     any
}

// page returns the handler of a page for users who have signed in. Others get the form to sign in.
func (p *pages) page(read func(*http.Request) (view, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, err := p.user(r)
		if err == nil && user == "" {
			http.Redirect(w, r, "/sign-in?"+url.Values{"next": {r.URL.RequestURI()}}.Encode(), http.StatusSeeOther)
			return
		}
		var v view
		if err == nil {
			v, err = read(r)
		}
		if err != nil {
			p.fail(w, r, user, err)
			return
		}
		v.User, v.Query, v.Stack = user, r.URL.Query(), stackName(r)
		p.write(w, r, http.StatusOK, v)
	})
}

// missing answers calls of unknown paths, also of callers who have not signed in.
func (p *pages) missing(w http.ResponseWriter, r *http.Request) {
	user, err := p.user(r)
	if err == nil {
		err = notFound("There is no such page.")
	}
	p.fail(w, r, user, err)
}

// fail answers with the page for an error.
func (p *pages) fail(w http.ResponseWriter, r *http.Request, user string, err error) {
	var known *Problem
	if !errors.As(err, &known) {
		if r.Context().Err() == nil {
			p.log.Error("page failed", "component", "page", "path", r.URL.Path, "error", err)
		}
		known = &Problem{http.StatusInternalServerError, "The service failed. Its log has the reason."}
	}
	p.write(w, r, known.Code, view{template: "problem", Title: http.StatusText(known.Code), User: user, Data: known})
}

// write renders a page. Nothing is sent before the template has succeeded.
func (p *pages) write(w http.ResponseWriter, r *http.Request, code int, v view) {
	var text bytes.Buffer
	if err := p.templates[v.template].ExecuteTemplate(&text, "layout.html", v); err != nil {
		p.log.Error("page failed", "component", "page", "path", r.URL.Path, "error", err)
		http.Error(w, "The service failed. Its log has the reason.", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Length", strconv.Itoa(text.Len()))
	w.WriteHeader(code)
	_, _ = w.Write(text.Bytes()) // fails only if the client has disconnected
}

func (p *pages) deployments(r *http.Request) (view, error) {
	query := r.URL.Query()
	before, err := number(query, "before")
	if err != nil {
		return view{}, err
	}
	list, err := p.source.Deployments(r.Context(), query.Get("show") == "active", before)
	return view{template: "deployments", Title: "Deployments", Section: "deployments", Refresh: refreshSoon,
		Data: list}, err
}

func (p *pages) deployment(r *http.Request) (view, error) {
	version, err := strconv.ParseInt(r.PathValue("version"), 10, 64)
	if err != nil {
		return view{}, notFound("There is no such deployment.")
	}
	from := r.URL.Query().Get("from")
	d, err := p.source.Deployment(r.Context(), stackName(r), version, from)
	return view{template: "deployment", Title: fmt.Sprintf("%s: deployment %d", d.Stack, version),
		Section: "deployments", Refresh: refreshOf(d.Log), Data: d}, err
}

// refreshOf returns when a page with a log is updated.
func refreshOf(log Log) string {
	switch {
	case log.More:
		return refreshNow
	case log.Next != "":
		return refreshLog
	default:
		return ""
	}
}

func (p *pages) stacks(r *http.Request) (view, error) {
	query := r.URL.Query()
	after := StackName{Project: query.Get("project"), Name: query.Get("stack")}
	list, err := p.source.Stacks(r.Context(), strings.TrimSpace(query.Get("search")), after)
	return view{template: "stacks", Title: "Stacks", Section: "stacks", Refresh: refreshSlow, Data: list}, err
}

func (p *pages) stack(r *http.Request) (view, error) {
	s, err := p.source.Stack(r.Context(), stackName(r))
	v := view{template: "stack", Title: s.Stack.String(), Section: "stacks", Refresh: refreshSlow, Data: s}
	if slices.ContainsFunc(s.Updates, func(u Update) bool { return u.Ended.IsZero() }) ||
		slices.ContainsFunc(s.Deployments, func(d Deployment) bool { return d.Ended.IsZero() }) {
		v.Refresh = refreshSoon
	}
	return v, err
}

func (p *pages) resources(r *http.Request) (view, error) {
	from, err := number(r.URL.Query(), "from")
	if err != nil {
		return view{}, err
	}
	list, err := p.source.Resources(r.Context(), stackName(r), int(from))
	return view{template: "resources", Title: stackName(r).String() + ": resources", Section: "stacks",
		Data: list}, err
}

func (p *pages) updates(r *http.Request) (view, error) {
	list, err := p.source.Updates(r.Context(), stackName(r), r.URL.Query().Get("after"))
	return view{template: "updates", Title: stackName(r).String() + ": updates", Section: "stacks", Data: list}, err
}

func (p *pages) update(r *http.Request) (view, error) {
	u, err := p.source.Update(r.Context(), stackName(r), r.PathValue("update"), r.URL.Query().Get("from"))
	return view{template: "update", Title: u.Stack.String() + ": " + updateName(u), Section: "stacks",
		Refresh: refreshOf(u.Log), Data: u}, err
}

func (p *pages) pools(r *http.Request) (view, error) {
	list, err := p.source.Pools(r.Context())
	return view{template: "pools", Title: "Agent pools", Section: "pools", Refresh: refreshSlow, Data: list}, err
}

func stackName(r *http.Request) StackName {
	return StackName{r.PathValue("org"), r.PathValue("project"), r.PathValue("stack")}
}

// number returns a number of a query, or 0 if the query has none.
func number(query url.Values, name string) (int64, error) {
	if !query.Has(name) {
		return 0, nil
	}
	n, err := strconv.ParseInt(query.Get(name), 10, 63)
	if err != nil || n < 0 {
		return 0, &Problem{http.StatusBadRequest, "The address has a number " + name + " that is not valid."}
	}
	return n, nil
}
