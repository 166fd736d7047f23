package status

import (
	"bytes"
	"encoding/json"
	"testing"
)

func TestDocument(t *testing.T) {
	t.Run("its JSON is that of this version", func(t *testing.T) {
		content, err := json.MarshalIndent(fixedDocument(), "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		golden(t, "document.json", string(content)+"\n")
	})
	t.Run("survives JSON", func(t *testing.T) {
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
