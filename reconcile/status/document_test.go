package status

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/cmwa-project/cmwa/reconcile"
)

func TestDocument(t *testing.T) {
	t.Run("JSON is that of the golden file", func(t *testing.T) {
		content, err := json.MarshalIndent(fixedDocument(), "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		golden(t, "document.json", string(content)+"\n")
	})
	t.Run("encoding and decoding change nothing", func(t *testing.T) {
		content, _ := json.Marshal(fixedDocument())
		var d Document
		if err := json.Unmarshal(content, &d); err != nil {
			t.Fatal(err)
		}
		if again, _ := json.Marshal(d); !bytes.Equal(content, again) {
			t.Errorf("got %s\nwant %s", again, content)
		}
	})
}

func TestReloadOfLongValues(t *testing.T) {
	state := reconcile.ConfigState{}
	long := strings.Repeat("ä", 32<<10)
	for i := range 200 {
		state.LastReload = append(state.LastReload, reconcile.Reload{
			Pool: fmt.Sprint(i), PoolChange: reconcile.Tuned,
			Changes: []reconcile.Change{{Key: "pod_template", From: "{a: 1}", To: long, Effect: reconcile.NextJob}},
		})
	}
	d := fixedDocument()
	d.Reload = reloadOf(state)
	text, err := json.Marshal(d)
	if err != nil || len(text) > maxDocument {
		t.Errorf("the document has %d bytes (%v), and Fetch reads at most %d", len(text), err, maxDocument)
	}
	c := d.Reload.Changes[0]
	if c.From != "{a: 1}" || !strings.HasPrefix(c.To, "ää") || !strings.HasSuffix(c.To, "ä …") ||
		len(c.To) > maxValue {
		t.Errorf("got %q -> %q", c.From, c.To)
	}
}
