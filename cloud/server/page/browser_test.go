package page_test

import (
	"errors"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp/kb"

	"github.com/cmwa-project/cmwa/cloud/server/page"
	"github.com/cmwa-project/cmwa/runtime/browsertest"
)

func signIn(b *browsertest.Tab) {
	b.Until(`document.activeElement.id === "token"`)
	b.Keys(token + kb.Enter)
	b.Until(`document.querySelector(".top") && document.readyState === "complete"`) // the browser shows parts before
}

func serve(t *testing.T, s *service) string {
	t.Helper()
	server := httptest.NewServer(newBrowser(t, s, "").handler)
	t.Cleanup(server.Close)
	return server.URL
}

func TestPagesInBrowser(t *testing.T) {
	browser := browsertest.Start(t)
	const stack = "/acme/website/production"

	t.Run("sign in with the keyboard", func(t *testing.T) {
		t.Parallel()
		b := browsertest.New(t, browser, serve(t, newService()))
		b.Open(stack)
		b.Keys("wrong" + kb.Enter)
		b.Shown("[role=alert]")
		b.Forget() // the browser reports the status 401
		signIn(b)
		if got := b.Eval("location.pathname"); got != stack {
			t.Errorf("after the sign-in the browser is at %s", got)
		}
		if got := b.Eval("document.cookie"); got != "" {
			t.Errorf("scripts read the cookie %q", got)
		}
		b.Keys(kb.Tab)
		if got := b.Eval(`document.activeElement.className`); got != "skip" {
			t.Errorf("the first focus is at .%s, want the link to the content", got)
		}
		b.Eval(`document.querySelector(".user button").click()`)
		b.Shown("#token")
		b.Unproblematic()
	})

	t.Run("follow a deployment", func(t *testing.T) {
		t.Parallel()
		s := newService()
		b := browsertest.New(t, browser, serve(t, s))
		b.Open(stack + "/deployments/42")
		signIn(b)
		b.Until(`document.querySelectorAll("#log li").length === 7`)
		b.Eval(`document.querySelector(".path a[href$=production]").focus()`)

		s.change(func() {
			s.deployment.Log.Lines = append(s.deployment.Log.Lines, page.Line{Time: time.Now(), Text: hostile})
		})
		b.Until(`document.querySelectorAll("#log li").length === 8`)
		s.change(func() {
			s.deployment.Log.Lines = append(s.deployment.Log.Lines, page.Line{Time: time.Now(), Text: "the last line"})
			s.deployment.Status, s.deployment.Ended = "succeeded", time.Now()
			s.deployment.Steps[2].Status = "succeeded"
		})
		b.Until(`document.querySelector("#log-end").innerText === "End of the log"`)
		got := b.Eval(`[...document.querySelectorAll("#log li span")].slice(7)
			.map((line) => line.textContent).join("|")`)
		if got != hostile+"|the last line" {
			t.Errorf("the new lines are %q", got)
		}
		if got := b.Eval(`document.querySelector(".heading .status").innerText`); got != "succeeded" {
			t.Errorf("the status is %q", got)
		}
		if got := b.Eval(`document.activeElement.pathname`); got != stack {
			t.Errorf("the focus moved to %q", got)
		}
		if got := b.Eval(`document.querySelector("main").dataset.refresh`); got != "undefined" {
			t.Errorf("the page of an ended deployment is requested again after %s s", got)
		}
		b.Unproblematic()
	})

	t.Run("a log of several pages", func(t *testing.T) {
		t.Parallel()
		s := newService()
		s.lines, s.deployment.Ended = 2, time.Now()
		b := browsertest.New(t, browser, serve(t, s))
		b.Open(stack + "/deployments/42")
		signIn(b)
		b.Until(`document.querySelector("#log-end").innerText === "End of the log"`)
		got := b.Eval(`[...document.querySelectorAll("#log li span")]
			.map((line) => line.textContent.slice(0, 5)).join("|")`)
		if got != "Setup|image|Get s|HEAD |pulum|Updat|<scri" {
			t.Errorf("the log has the lines %q", got)
		}
		b.Unproblematic()
	})

	t.Run("a row that is new", func(t *testing.T) {
		t.Parallel()
		s := newService()
		b := browsertest.New(t, browser, serve(t, s))
		b.Open("/")
		signIn(b)
		b.Eval(`document.querySelector("#d7 .main a").focus()`)
		s.change(func() {
			s.queued = append(s.queued, page.Deployment{
				Key: 9, Stack: s.stack.Stack, Version: 43, Operation: "destroy", Status: "not-started",
			})
		})
		b.Until(`document.querySelector("tbody tr").id === "d9"`)
		if got := b.Eval(`document.activeElement.closest("tr").id`); got != "d7" {
			t.Errorf("the focus moved to row %s", got)
		}
		b.Unproblematic()
	})

	t.Run("a service that stops", func(t *testing.T) {
		t.Parallel()
		s := newService()
		handler := newBrowser(t, s, "").handler
		server := httptest.NewServer(handler)
		defer server.Close()
		b := browsertest.New(t, browser, server.URL)
		b.Open(stack + "/deployments/42")
		signIn(b)
		s.change(func() { s.fault = errors.New("down") })
		b.Until(`!document.querySelector("#offline").hidden`)
		s.change(func() { s.fault = nil })
		b.Until(`document.querySelector("#offline").hidden`)
		s.change(func() { s.session = "" })
		b.Shown("#token")
		if got := b.Eval("new URLSearchParams(location.search).get('next')"); got != stack+"/deployments/42" {
			t.Errorf("after the end of the session the form leads to %s", got)
		}
	})

	t.Run("without JavaScript", func(t *testing.T) {
		t.Parallel()
		b := browsertest.New(t, browser, serve(t, newService()))
		off := emulation.SetScriptExecutionDisabledParams{Value: true}
		browsertest.Call(b, emulation.SetScriptExecutionDisabled, off)
		b.Open(stack + "/deployments/42")
		signIn(b)
		text := b.Eval(`document.querySelector("#log").innerText`)
		if !strings.Contains(text, "Serve the new start page") {
			t.Errorf("the log shows %q", text)
		}
		b.Unproblematic()
	})

	t.Run("screens", func(t *testing.T) {
		t.Parallel()
		b := browsertest.New(t, browser, serve(t, newService()))
		for i, path := range []string{
			"/sign-in", "/", "/stacks", stack, stack + "/updates", stack + "/updates/11", stack + "/resources",
			stack + "/deployments/42", "/pools", "/none", "/?before=1",
		} {
			b.Open(path)
			b.Shown("main")
			b.CheckScreens(fmt.Sprintf("%02d%s", i, strings.ReplaceAll(path, "/", "-")))
			if i == 0 {
				signIn(b)
			}
		}
	})
}
