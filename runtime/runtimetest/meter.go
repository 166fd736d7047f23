package runtimetest

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

// decide counts a call, and returns the fault to inject into it.
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

	// Choose the fault: the one that the test ordered, that of the storm, or one drawn by the seed.
	fault := p.ordered(r)
	switch {
	case fault.Kind != "" || p.stopped:
	case now.Before(p.weather.until):
		fault = p.weather.fault
	default:
		fault = draw(p.o.Seed, series, n, p.o.Share)
		if fault.Kind == BlackHole && !p.mayBlackhole(now) {
			fault.Kind = Reset
		}
		p.beginStorm(now)
	}
	if r.URL.Path == pollPath {
		fault = fault.before()
	}
	if fault.Kind != "" {
		p.injected[fault.String()]++
	}
	return fault
}

func (p *Proxy) ordered(r *http.Request) Fault {
	for _, o := range p.orders {
		if o.left > 0 && o.match(r) {
			o.left--
			return o.fault
		}
	}
	return Fault{}
}

// blackHoleGap is the shortest time between two black holes that the seed selects. A client
// needs up to 25 s to detect one, and the service gives a job to another agent if the agent that
// claimed the job is silent for 35 s: two black holes in a row exceed what an agent tolerates.
const blackHoleGap = 40 * time.Second

// mayBlackhole reports whether a black hole may begin, and if so, records that it does. The caller
// holds the lock.
func (p *Proxy) mayBlackhole(now time.Time) bool {
	if now.Sub(p.weather.silent) < blackHoleGap {
		return false
	}
	p.weather.silent = now
	return true
}

const longestStorm = 3 * time.Second

// callsUntilStorm returns a random number of calls until the next storm.
func (p *Proxy) callsUntilStorm() int {
	return p.o.Storms/2 + p.weather.random.IntN(max(1, p.o.Storms))
}

// beginStorm counts down to the next storm and begins it. [ProxyOptions] lists the kinds of
// storms.
func (p *Proxy) beginStorm(now time.Time) {
	weather := &p.weather
	if weather.next--; weather.next > 0 || p.o.Storms == 0 {
		return
	}
	weather.next = p.callsUntilStorm()
	name := ""
	switch kind := weather.random.IntN(6); {
	case kind == 0 && p.mayBlackhole(now):
		name = "all connections swallowed"
		p.Blackhole()
	case kind <= 1:
		name = "all connections reset"
		p.Reset()
	case kind == 2:
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

// untrusted reports whether a new connection gets a certificate that no client trusts.
func (p *Proxy) untrusted() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.stopped && time.Now().Before(p.weather.certificate)
}

// seriesOf returns the series of a call: its method and path. In the path of a call about a
// job, the ordinal of the job's claim replaces the id, because ids differ from run to run.
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

// programOf returns a name for the program that made a call. For an agent it is the User-Agent,
// which contains the process id. For a runner the name contains the id of the job, because all
// runners of an agent have the same User-Agent.
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

// Rate is the highest call rate of a program.
type Rate struct {
	Program string
	Calls   int // number of all calls
	Most    int // largest number of calls within one second
}

// Rates returns the rates of all programs, the highest first. It counts every call that
// arrived, answered or not. The interval of one second can begin at any time.
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
