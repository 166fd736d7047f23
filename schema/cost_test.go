package schema_test

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"

	"github.com/cmwa-project/cmwa/schema"
)

// growthLimitMB is how much memory an agent may keep of ten thousand reloads.
const growthLimitMB = 5.0

// reload returns the content of a file that has been edited so many times: each
// time another token, another comment, another unknown key, and now and then
// mistakes, so that nothing of a load can be shared with the one before.
func reload(files [][]byte, i int) []byte {
	content := files[i%len(files)]
	edited := fmt.Appendf(nil, "# edit %d\n%s\nunknown_%d: {a%d: [%d]}\n", i, content, i, i, i)
	if i%5 == 0 {
		edited = fmt.Appendf(edited, "log_level: loud%d\nrequest_retry_count: -%d\n", i, i+1)
	}
	return edited
}

// BenchmarkMemoryOfTenThousandLoads loads a configuration ten thousand times in
// one process, as a long life of edits would, and tells by how much the heap and
// the resident memory have grown since the first hundreds.
func BenchmarkMemoryOfTenThousandLoads(b *testing.B) {
	var files [][]byte
	for _, name := range []string{"docker.yaml", "kubernetes.yaml", "pools.yaml", "oidc.yaml", "process.yaml"} {
		content, err := os.ReadFile(filepath.Join("../examples", name))
		if err != nil {
			b.Fatal(err)
		}
		files = append(files, content)
	}
	const warm, loads = 500, 10_000
	usable, refused := 0, 0
	load := func(from, to int) {
		for i := from; i < to; i++ {
			config, problems := schema.Load(schema.Source{Path: "pulumi-workflow-agent.yaml", Content: reload(files, i), Elsewhere: true})
			switch {
			case config != nil:
				usable++
			case len(problems.Errors()) > 0:
				refused++
			}
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		load(0, warm)
		heapBefore, residentBefore := memoryMB(b)
		load(warm, warm+loads)
		heap, resident := memoryMB(b)
		if usable == 0 || refused == 0 {
			b.Fatalf("%d loads were usable and %d refused: both must be among them", usable, refused)
		}
		b.ReportMetric(heap-heapBefore, "MB-heap-growth")
		b.ReportMetric(resident-residentBefore, "MB-resident-growth")
		b.ReportMetric(b.Elapsed().Seconds()*1000/float64(usable+refused), "ms/load")
		b.Logf("%d loads, %d of them refused: heap %.2f MB, before %.2f; resident %.1f MB, before %.1f; growth %.2f and %.1f MB (limit %.0f)",
			usable+refused, refused, heap, heapBefore, resident, residentBefore, heap-heapBefore, resident-residentBefore, growthLimitMB)
		if heap-heapBefore > growthLimitMB || resident-residentBefore > growthLimitMB {
			b.Error("loads leave too much memory behind")
		}
	}
}

// memoryMB is the memory in use once all garbage is collected and given back: of
// the heap, and of the process (proc(5)).
func memoryMB(b *testing.B) (heap, resident float64) {
	b.Helper()
	runtime.GC() // finalizers of the first run free more in the second
	debug.FreeOSMemory()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		b.Fatal(err)
	}
	pages, err := strconv.Atoi(strings.Fields(string(text))[1])
	if err != nil {
		b.Fatal(err)
	}
	return float64(stats.HeapAlloc) / (1 << 20), float64(pages*os.Getpagesize()) / (1 << 20)
}
