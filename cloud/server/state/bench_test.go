package state

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
)

// large returns a state with resources of about 3 kB.
func large(resources int) []byte {
	var text bytes.Buffer
	text.WriteString(`{"version":3,"deployment":{"secrets_providers":{"type":"service","state":{}},"resources":[`)
	for i := range resources {
		if i > 0 {
			text.WriteByte(',')
		}
		dependencies := fmt.Sprintf(`["%s"]`, urn(fmt.Sprint(i/2)))
		text.WriteString(one(fmt.Sprint(i), `,"parent":"`+urn("root")+`","provider":"`+urn("provider")+`::id",`+
			`"dependencies":`+dependencies+`,"propertyDependencies":{"x":`+dependencies+`},"outputs":{"list":["`+
			strings.Repeat(`text","`, 350)+`"]}`))
	}
	text.WriteString("]}}")
	return text.Bytes()
}

// BenchmarkJournal replays the update of 300 resources.
func BenchmarkJournal(b *testing.B) {
	const resources = 300
	text := large(resources)
	base, err := Decode(text)
	if err != nil {
		b.Fatal(err)
	}
	var bodies [][]byte
	for i, r := range base.resources {
		bodies = append(bodies, fmt.Appendf(nil, `{"entries":[{"version":1,"kind":0,"sequenceID":%d,"operationID":%d,`+
			`"operation":{"type":"updating","resource":%s}},{"version":1,"kind":1,"sequenceID":%d,"operationID":%d,`+
			`"removeOld":%d,"state":%s}]}`, 2*i+1, i+1, r.text, 2*i+2, i+1, i, r.text))
	}
	for b.Loop() {
		base, err := Decode(text)
		if err != nil {
			b.Fatal(err)
		}
		journal := NewJournal(base)
		for _, body := range bodies {
			entries, err := Entries(body)
			if err != nil {
				b.Fatal(err)
			}
			for _, e := range entries {
				if err := journal.Add(e); err != nil {
					b.Fatal(err)
				}
			}
		}
		if d := journal.Deployment(noon, ""); d.Count() != resources || len(d.Encode()) < len(text) {
			b.Fatal("resources are missing")
		}
	}
	b.ReportMetric(float64(len(text))/1e6, "MB")
}

// BenchmarkDecode decodes a state of 50 MB, rewrites its secrets provider and encodes it, as an export does.
func BenchmarkDecode(b *testing.B) {
	text := large(17_000)
	b.ReportAllocs()
	for b.Loop() {
		d, err := Decode(text)
		if err != nil {
			b.Fatal(err)
		}
		if len(RewriteProvider(d, "http://b", "acme", "web", "dev").Encode()) < len(text) {
			b.Fatal("resources are missing")
		}
	}
	b.ReportMetric(float64(len(text))/1e6, "MB")
}

func BenchmarkRename(b *testing.B) {
	d, err := Decode(large(17_000))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		Rename(d, Name{"web", "dev"}, Name{"shop", "prod"})
	}
}
