package runtimetest

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

// decide counts a call, and returns the fault that it meets.
func (p *Proxy) decide(r *http.Request, body []byte) Fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	program := programOf(r)
	p.calls[program] = append(p.calls[program], now)
	if r.Method == http.MethodPatch && strings.Contains(string(body), `"failed"`) {
		p.failed = append(p.failed, r.Method+" "+r.URL.Path+" by "+program)
	}
	series := p.seriesOf(r)
	n := p.series[series]
	p.series[series]++

	fault := p.ordered(r)
	switch {
	case fault.Kind != "" || p.calm:
	case now.Before(p.weather.until):
		fault = p.weather.fault
	default:
		fault = draw(p.o.Seed, series, n, p.o.Share)
		p.brew(now)
	}
	if r.URL.Path == pollPath {
		fault = fault.before()
	}
	if fault.Kind != "" {
		p.injected[fault.String()]++
	}
	return fault
}

// ordered takes the fault that a test ordered for a call.
func (p *Proxy) ordered(r *http.Request) Fault {
	for _, o := range p.orders {
		if o.left > 0 && o.match(r) {
			o.left--
			return o.fault
		}
	}
	return Fault{}
}

// longestStorm is the longest time that a storm lasts.
const longestStorm = 3 * time.Second

// pause is the number of calls until the next storm.
func (p *Proxy) pause() int {
	return p.o.Storms/2 + p.weather.random.IntN(max(1, p.o.Storms))
}

// brew begins a storm when it is time for one: a fault for all calls, or one for
// all connections.
func (p *Proxy) brew(now time.Time) {
	weather := &p.weather
	if weather.next--; weather.next > 0 || p.o.Storms == 0 {
		return
	}
	weather.next = p.pause()
	name := ""
	switch weather.random.IntN(6) {
	case 0:
		name = "all connections swallowed"
		p.Swallow()
	case 1:
		name = "all connections reset"
		p.Reset()
	case 2:
		name = "storm of untrusted certificates"
		weather.certificate = now.Add(between(weather.random, time.Second, longestStorm))
		p.Reset()
	default:
		weather.fault = anyStorm(weather.random)
		weather.until = now.Add(between(weather.random, 500*time.Millisecond, longestStorm))
		name = "storm of " + weather.fault.String()
	}
	p.injected[name]++
}

// untrusted reports whether a new connection meets a certificate that no client
// trusts.
func (p *Proxy) untrusted() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.calm && time.Now().Before(p.weather.certificate)
}

// seriesOf names the series that a call belongs to: the kind of the call, and of
// a job's call the ordinal of its claim, since ids differ from run to run.
func (p *Proxy) seriesOf(r *http.Request) string {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	for i, part := range parts {
		_, id, compound := strings.Cut(part, ":")
		if ordinal, ok := p.jobs[part]; ok {
			parts[i] = fmt.Sprint(ordinal)
		} else if ordinal, ok := p.jobs[id]; ok && compound {
			parts[i] = fmt.Sprint(ordinal)
		}
	}
	return r.Method + " " + strings.Join(parts, "/")
}

// programOf names the program that made a call: an agent by its whole
// User-Agent, which holds its process id; a runner by its job, since it has the
// User-Agent that its agent gave it.
func programOf(r *http.Request) string {
	product, _, _ := strings.Cut(r.UserAgent(), "/")
	if product != "workflow-runner" {
		return r.UserAgent()
	}
	parts := strings.Split(r.URL.Path, "/") // /api/workflow/jobs/{job}/...
	if len(parts) < 5 {
		return product
	}
	return product + " of job " + parts[4]
}

// Rate is how fast a program called at its worst.
type Rate struct {
	Program string
	Calls   int // in all
	Most    int // within any one second
}

// Rates returns the rates of all programs, the highest first. Every call that
// arrived counts, answered or not. A second is any span of that length, not one
// of the clock.
func (p *Proxy) Rates() []Rate {
	p.mu.Lock()
	defer p.mu.Unlock()
	var rates []Rate
	for program, calls := range p.calls {
		most, from := 0, 0
		for to, at := range calls {
			for at.Sub(calls[from]) >= time.Second {
				from++
			}
			most = max(most, to-from+1)
		}
		rates = append(rates, Rate{program, len(calls), most})
	}
	slices.SortFunc(rates, func(a, b Rate) int { return cmp.Or(b.Most-a.Most, strings.Compare(a.Program, b.Program)) })
	return rates
}
