package schema_test

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"

	"github.com/cmwa-project/cmwa/schema"
)

// growthLimitMB is the largest growth of memory in ten thousand loads, in MB.
const growthLimitMB = 5.0

// reload returns the content of a file after edit number i. Each edit has another comment
// and another unknown key, and every fifth edit also has invalid values, so that a load
// cannot share anything with the previous one.
func reload(files []textFile, i int) []byte {
	content := files[i%len(files)].content
	edited := fmt.Appendf(nil, "# edit %d\n%s\nunknown_%d: {a%d: [%d]}\n", i, content, i, i, i)
	if i%5 == 0 {
		edited = fmt.Appendf(edited, "log_level: loud%d\nrequest_retry_count: -%d\n", i, i+1)
	}
	return edited
}

// BenchmarkLoadMemory loads edited configurations ten thousand times in one process, like an
// agent after many edits. It first makes 500 other loads, and then reports by how much the
// heap and the resident memory grow during the ten thousand loads.
func BenchmarkLoadMemory(b *testing.B) {
	files := corpus(b, 5, "../examples/docker.yaml", "../examples/kubernetes.yaml", "../examples/pools.yaml",
		"../examples/oidc.yaml", "../examples/process.yaml")
	const warm, loads = 500, 10_000
	usable, refused := 0, 0
	load := func(from, to int) {
		for i := from; i < to; i++ {
			src := schema.Source{Path: "pulumi-workflow-agent.yaml", Content: reload(files, i), Elsewhere: true}
			config, problems := schema.Load(src)
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
			b.Fatalf("%d files were accepted and %d rejected, want some of both", usable, refused)
		}
		b.ReportMetric(heap-heapBefore, "MB-heap-growth")
		b.ReportMetric(resident-residentBefore, "MB-resident-growth")
		b.ReportMetric(b.Elapsed().Seconds()*1000/float64(usable+refused), "ms/load")
		b.Logf("%d loads, %d of them rejected: heap %.2f MB, before %.2f; resident %.1f MB, before %.1f; "+
			"growth %.2f and %.1f MB (limit %.0f)", usable+refused, refused, heap, heapBefore, resident, residentBefore,
			heap-heapBefore, resident-residentBefore, growthLimitMB)
		if heap-heapBefore > growthLimitMB || resident-residentBefore > growthLimitMB {
			b.Errorf("the heap or the resident memory has grown by more than %.0f MB", growthLimitMB)
		}
	}
}

// memoryMB returns the memory in use after garbage collection, of the heap and of the process
// (proc(5)), in MB.
func memoryMB(b *testing.B) (heap, resident float64) {
	b.Helper()
	runtime.GC()
	debug.FreeOSMemory() // collects again, because finalizers have released more objects
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
