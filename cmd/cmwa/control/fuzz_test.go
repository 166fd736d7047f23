package control

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"testing"
	"testing/iotest"
)

// FuzzDecodeRequest decodes the bytes of a connection as the agent does. It checks that the
// result does not depend on the number of bytes in each read, and that an accepted request
// is the same after it has been encoded and decoded again.
func FuzzDecodeRequest(f *testing.F) {
	for _, text := range []string{
		"", "\n", "{}\n", "[]\n", `{"version":1,"command":"drain"}` + "\n",
		`{"version":1,"command":"pause","pool":"blue"}` + "\nmore", `{"version":1,"command":"pause"}` + "\n",
		`{"version":1,"command":"stop","job":"3f2a"}` + "\n", `{"version":1,"command":"stop"}` + "\n",
		`{"version":1e0,"command":"show"}` + "\n", `{"version":99999999999999999999}` + "\n",
		`{"version":1,"command":"plan","file":{"path":"/a","content":"YQ==","mode":384}}` + "\n",
		`{"version":null,"command":"drain"}` + "\n", `{"VERSION":1,"COMMAND":"drain"}` + "\n",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		line, err := readLine(bytes.NewReader(text), maxRequest)
		slow, slowErr := readLine(iotest.OneByteReader(bytes.NewReader(text)), maxRequest)
		if !bytes.Equal(line, slow) || (err == nil) != (slowErr == nil) {
			t.Fatalf("at once %q, %v; byte by byte %q, %v", line, err, slow, slowErr)
		}
		if err != nil {
			return
		}
		if len(line) > maxRequest || bytes.Contains(line, []byte("\n")) {
			t.Fatalf("the line has a newline or is too long: %d bytes", len(line))
		}
		request, err := DecodeRequest(line)
		if err != nil {
			if !reflect.DeepEqual(request, Request{}) {
				t.Fatalf("a refused request is %+v", request)
			}
			return
		}
		again, err := json.Marshal(request)
		if err != nil {
			t.Fatal(err)
		}
		if second, err := DecodeRequest(again); err != nil || !reflect.DeepEqual(second, request) {
			t.Fatalf("%+v is sent as %s and decoded as %+v, %v", request, again, second, err)
		}
	})
}

// FuzzDecodeResponse decodes what a program other than an agent may send to a client.
func FuzzDecodeResponse(f *testing.F) {
	for _, text := range []string{
		"{}\n", `{"version":1,"started":"2026-01-02T03:04:05Z","pools":[{"name":"a","jobs":3}]}` + "\n",
		`{"version":1,"pools":null,"stopAt":""}` + "\n", `{"version":1,"error":"no"}` + "\n",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		line, err := readLine(bytes.NewReader(text), maxResponse)
		if err != nil {
			if len(text) <= maxResponse && errors.Is(err, errTooLong) {
				t.Fatalf("a line of %d bytes is refused as too long", len(text))
			}
			return
		}
		if response, err := DecodeResponse(line); err == nil && response.Version != Version {
			t.Fatalf("version %d is accepted", response.Version)
		}
	})
}

// FuzzDecodePaused decodes the file of the paused pools.
func FuzzDecodePaused(f *testing.F) {
	for _, text := range []string{"", "[]", `["blue","red"]`, "null", "{}", `[null]`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		names, err := DecodePaused(text)
		if err != nil && names != nil {
			t.Fatalf("the file is refused, but DecodePaused returns %q", names)
		}
	})
}
