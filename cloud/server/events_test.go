package server

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// events returns events with sequences.
func events(sequences ...int) object {
	all := []object{}
	for _, n := range sequences {
		all = append(all, object{"sequence": n, "timestamp": 1_700_000_000, "resourcePreEvent": object{
			"metadata": object{"op": "create", "urn": fmt.Sprintf("urn:%d", n)},
		}})
	}
	return object{"events": all}
}

// read returns the sequences of a page of events, and the token of the next page.
func (u *change) read(query string) (sequences string, next string) {
	u.w.t.Helper()
	var page struct {
		Events []struct{ Sequence int }
		Next   *string `json:"continuationToken"`
	}
	got := u.w.want(200, u.w.user, "GET", u.path("/events?"+query), nil, &page)
	if !strings.Contains(got.body, "continuationToken") {
		u.w.t.Errorf("the page %s has no token", got.body)
	}
	for _, one := range page.Events {
		sequences += fmt.Sprint(one.Sequence, " ")
	}
	if page.Next == nil {
		return sequences, "end"
	}
	return sequences, *page.Next
}

func TestEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.close()
		w.stack("s")
		u := w.update("s", object{}).start()
		shows := func(query, sequences, next string) {
			t.Helper()
			if got, token := u.read(query); got != sequences || token != next {
				t.Errorf("%q shows %q and the token %s, want %q and %s", query, got, token, sequences, next)
			}
		}
		send := func(code int, body any) {
			t.Helper()
			if got := u.ask("POST", "/events/batch", body); got.code != code {
				t.Errorf("%v: %d %s, want %d", body, got.code, got.body, code)
			}
		}

		// 1. Readers see the events in order, and wait for those that others have overtaken.
		shows("", "", "0")
		send(204, events(0, 1))
		send(204, events(5, 4)) // overtakes 2 and 3
		send(204, events(0, 1)) // a retry
		shows("", "0 1 ", "2")
		shows("continuationToken=2", "", "2")
		send(204, events(2, 3))
		shows("continuationToken=2", "2 3 4 5 ", "6")
		shows("continuationToken=6", "", "6")

		// 2. They do not wait long.
		send(204, events(8))
		shows("continuationToken=6", "", "6")
		time.Sleep(eventGap)
		shows("continuationToken=6", "8 ", "9")

		// 3. Filters.
		shows("urn=urn:3", "3 ", "9")
		shows("type=summaryEvent", "", "9")
		shows("type=resourcePreEvent&urn="+url.QueryEscape("urn:8"), "8 ", "9")
		w.want(400, w.user, "GET", u.path("/events?type=7"), nil, nil)
		w.want(400, w.user, "GET", u.path("/events?continuationToken=x"), nil, nil)

		// 4. The summary is stored with the update.
		send(204, object{"events": []object{{"sequence": 9, "summaryEvent": object{
			"resourceChanges": object{"create": 2, "same": 1},
		}}}})
		if n := w.count(`SELECT count(*) FROM updates WHERE id = ? AND changes = ?`, u.id,
			`{"create":2,"same":1}`); n != 1 {
			t.Error("the changes are not stored")
		}

		// 5. Events without a sequence are refused.
		for _, body := range []string{
			`{"events":[{}]}`, `{"events":[{"sequence":-1}]}`, `{"events":[{"sequence":"x"}]}`, `{"events":[7]}`,
			`{"events":[null]}`, `{"events":{}}`, `{"events":[{"sequence":9223372036854775807}]}`,
		} {
			send(400, body)
		}
		send(204, `{}`)

		// 6. After the end, the last page has no token.
		u.complete("succeeded")
		shows("continuationToken=9", "9 ", "end")
		shows("continuationToken=10", "", "end")
		send(403, events(10))
	})
}

// TestEventsPages reads many events by pages.
func TestEventsPages(t *testing.T) {
	w := newWorld(t)
	w.stack("s")
	u := w.update("s", object{}).start()
	const all = 60
	for i := range all {
		body := events(i)
		body["events"].([]object)[0]["stdoutEvent"] = object{"message": strings.Repeat("x", 100_000)}
		text, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		if got := u.ask("POST", "/events/batch", string(text)); got.code != 204 {
			t.Fatalf("events: %d %s", got.code, got.body)
		}
	}
	u.complete("succeeded")
	var got strings.Builder
	pages := 0
	for token := "0"; token != "end"; pages++ {
		var page string
		page, token = u.read("continuationToken=" + token)
		got.WriteString(page)
	}
	want := strings.Trim(fmt.Sprint(numbers(all)), "[]") + " "
	if got.String() != want || pages < 5 {
		t.Errorf("%d pages have the events %s", pages, got.String())
	}
}

func numbers(n int) (all []int) {
	for i := range n {
		all = append(all, i)
	}
	return all
}

func FuzzSaveEvents(f *testing.F) {
	for _, body := range []string{
		`{"events":[{"sequence":0}]}`,
		`{"events":[{"sequence":9223372036854775807},{"sequence":1,"summaryEvent":null}]}`,
		`{"events":[{"sequence":1,"summaryEvent":{"resourceChanges":{"same":1}}}]}`,
	} {
		f.Add(body, "urn:1")
	}
	w := newWorld(f)
	w.stack("s")
	f.Fuzz(func(t *testing.T, body, urn string) {
		w.t = t
		u := w.update("s", object{}).start()
		code := u.ask("POST", "/events/batch", body).code
		if code != 204 && code != 400 {
			t.Fatalf("events: %d", code)
		}
		u.complete("succeeded")
		query := u.path("/events?urn=" + url.QueryEscape(urn))
		for range 2 {
			if got := w.ask(w.user, "GET", query, nil); got.code != 200 || !json.Valid([]byte(got.body)) {
				t.Fatalf("the page: %d %s", got.code, got.body)
			}
			query = u.path("/events")
		}
	})
}
