package main

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// manyPoolsLimitMB limits the resident memory of an agent with that many idle pools, after 20
// reloads that change each pool.
var manyPoolsLimitMB = map[int]float64{200: 45, 1000: 100}

// manyPoolsScrape limits the time of a scrape of the metrics of 200 pools. The time grows with the pools.
const manyPoolsScrape = 20 * time.Millisecond

// BenchmarkRunManyPools measures the memory of an agent with many pools of deploy_target docker,
// which poll a service without jobs, and a scrape of its metrics. Service and engine are fakes in this
// process.
func BenchmarkRunManyPools(b *testing.B) {
	const reloads = 20
	for _, pools := range []int{200, 1000} {
		b.Run(fmt.Sprint("pools=", pools), func(b *testing.B) {
			for b.Loop() {
				bin, err := programs()
				noError(b, err)
				w := &world{t: b, directory: b.TempDir(), bin: bin, target: "docker"}
				_, address := serve(b, "tcp", "127.0.0.1:0", http.HandlerFunc(idleService))
				w.url = "http://" + address
				_, socket := serve(b, "unix", filepath.Join(w.directory, "engine"), http.HandlerFunc(idleEngine))

				// Each reload changes every pool.
				port := agentPort(freePort(b))
				text := func(edit int) string {
					var text strings.Builder
					text.WriteString(w.content("polling_interval: 30s", port.setting(),
						fmt.Sprint("request_timeout: ", 20+edit, "s")))
					text.WriteString("pools:\n")
					for i := range pools {
						fmt.Fprintf(&text, "  - {name: pool-%d, token: token-%d, max_concurrent_workflows: 4}\n", i, i)
					}
					return text.String()
				}
				agent := w.followText([]string{"DOCKER_HOST=unix://" + socket}, text(0))
				for edit := 1; edit <= reloads; edit++ {
					w.replace(w.file(), text(edit))
					agent.waitFor(fmt.Sprintf("converged component=reconcile generation=%d ", edit+1))
				}
				agent.ends(10 * time.Second) // the pools poll with the last settings
				resident := float64(memoryOf(agent.cmd.Process.Pid, "VmRSS")) / 1024
				b.ReportMetric(resident, "MB-resident")
				scrape := fastestScrape(b, port)
				b.ReportMetric(float64(scrape.Microseconds())/1000, "ms-scrape")
				if limit := manyPoolsScrape * time.Duration(pools/200); scrape > limit {
					b.Errorf("a scrape of %d pools takes at least %s, want at most %s", pools, scrape, limit)
				}
				b.Logf("%d idle pools after %d reloads: %.1f MB resident (limit %.0f), %.1f MB of it anonymous", pools,
					reloads, resident, manyPoolsLimitMB[pools], anonymousMB(b, agent))
			}
		})
	}
}

// fastestScrape returns the time of the fastest of 20 scrapes: other programs delay the others.
func fastestScrape(b *testing.B, port agentPort) time.Duration {
	b.Helper()
	fastest := time.Hour
	for range 20 {
		start := time.Now()
		if page := bodyOf(port.url("/metrics")); !strings.Contains(string(page), "cmwa_pool_jobs{") {
			b.Fatalf("the page of metrics has %d bytes and no pools", len(page))
		}
		fastest = min(fastest, time.Since(start))
	}
	return fastest
}

// idleService responds like a service without jobs.
func idleService(rw http.ResponseWriter, r *http.Request) {
	if isPoll(r) {
		rw.WriteHeader(http.StatusNoContent)
		return
	}
	http.NotFound(rw, r)
}

// idleEngine responds like an engine without containers.
func idleEngine(rw http.ResponseWriter, r *http.Request) {
	rw.Header().Set("Api-Version", "1.47")
	rw.Header().Set("Ostype", "linux")
	rw.Header().Set("Content-Type", "application/json")
	switch path := r.URL.Path; {
	case strings.HasSuffix(path, "/version"):
		fmt.Fprint(rw, `{"ApiVersion":"1.47","Os":"linux","Arch":"amd64"}`)
	case strings.HasSuffix(path, "/containers/json"), strings.HasSuffix(path, "/images/json"):
		fmt.Fprint(rw, `[]`)
	default:
		fmt.Fprint(rw, `{}`)
	}
}
