package page_test

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/cmwa-project/cmwa/cloud/server/page"
)

// tab is a tab of a real browser without a window.
type tab struct {
	t   *testing.T
	ctx context.Context
	url string // of the service

	mu       sync.Mutex
	problems []string // what the browser reported, such as a violation of the Content-Security-Policy
}

// chromium starts a browser. Without the program, the test is skipped, but under CI it fails.
func chromium(t *testing.T) context.Context {
	t.Helper()
	path, err := exec.LookPath("chromium")
	switch {
	case err != nil && os.Getenv("CI") == "true":
		t.Fatalf("chromium of Debian is missing: %v", err)
	case err != nil:
		t.Skipf("chromium is missing: %v", err)
	}
	ctx, cancel := chromedp.NewExecAllocator(t.Context(), chromedp.ExecPath(path), chromedp.Headless,
		chromedp.NoFirstRun, chromedp.NoSandbox, // the sandbox does not work for root
		chromedp.Flag("disable-dev-shm-usage", true))
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	if err := chromedp.Do(ctx); err != nil {
		t.Fatalf("start chromium: %v", err)
	}
	return ctx
}

func newTab(t *testing.T, browser context.Context, url string) *tab {
	t.Helper()
	ctx, cancel := chromedp.NewContext(browser, chromedp.WithNewBrowserContext())
	t.Cleanup(cancel)
	b := &tab{t: t, ctx: ctx, url: url}
	err := chromedp.Listen(ctx, func(event any) {
		b.mu.Lock()
		defer b.mu.Unlock()
		switch event := event.(type) {
		case *log.EventEntryAdded:
			b.problems = append(b.problems, event.Entry.Text+" "+event.Entry.URL)
		case *runtime.EventExceptionThrown:
			b.problems = append(b.problems, event.ExceptionDetails.Text)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	call(b, log.Enable, cdp.Empty{})
	return b
}

// waitLimit limits each action of the browser, and each wait for a change of a page.
const waitLimit = time.Minute

// run runs an action in the tab.
func run[T any](b *tab, action chromedp.Action[T]) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, waitLimit)
	defer cancel()
	result, err := chromedp.Run(ctx, action)
	if err != nil {
		b.t.Fatal(err)
	}
	return result
}

// call sends a command to the tab.
func call[P, R any](b *tab, command cdp.Command[P, R], params P) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, waitLimit)
	defer cancel()
	if _, err := chromedp.Call(ctx, command, params); err != nil {
		b.t.Fatal(err)
	}
}

func (b *tab) open(path string) { b.t.Helper(); run(b, chromedp.Navigate(b.url+path)) }

func (b *tab) keys(text string) { b.t.Helper(); run(b, chromedp.KeyEvent(text)) }

// eval returns the value of an expression in the page as a text.
func (b *tab) eval(expression string) string {
	b.t.Helper()
	return run(b, chromedp.Evaluate[string]("String("+expression+")"))
}

// until waits for an expression in the page to become true. While the browser loads another page, an expression may
// have no value.
func (b *tab) until(expression string) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, waitLimit)
	defer cancel()
	for tick := time.NewTicker(20 * time.Millisecond); ; {
		done, err := chromedp.Run(ctx, chromedp.Evaluate[bool]("Boolean("+expression+")"))
		if done && err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			b.t.Fatalf("%s is not true: %v; the page shows:\n%s", expression, err, b.eval("document.body.innerText"))
		}
	}
}

// shown waits for an element.
func (b *tab) shown(selector string) {
	b.t.Helper()
	b.until("document.querySelector(`" + selector + "`)")
}

func (b *tab) signIn() {
	b.t.Helper()
	b.until(`document.activeElement.id === "token"`)
	b.keys(token + kb.Enter)
	b.shown(".top")
}

// unproblematic checks that the browser reported nothing.
func (b *tab) unproblematic() {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.problems) > 0 {
		b.t.Errorf("the browser reports: %s", strings.Join(b.problems, "\n"))
	}
}

func serve(t *testing.T, s *service) string {
	t.Helper()
	server := httptest.NewServer(newBrowser(t, s, "").handler)
	t.Cleanup(server.Close)
	return server.URL
}

// faint is an expression with the texts of a page whose contrast to their background is less than 4.5 to 1, which WCAG
// 2.2 requires at level AA.
const faint = `(() => {
	const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
	const over = (element) => { // the colour of the background behind the text of an element
		if (!element) return;
		over(element.parentElement);
		canvas.fillStyle = getComputedStyle(element).backgroundColor;
		canvas.fillRect(0, 0, 1, 1);
	};
	const luminance = () => {
		const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].map((value) => {
			value /= 255;
			return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
		});
		return 0.2126 * r + 0.7152 * g + 0.0722 * b;
	};
	const faint = [];
	for (const element of document.body.querySelectorAll("*")) {
		const text = [...element.childNodes].filter((node) => node.nodeType === Node.TEXT_NODE && node.data.trim());
		if (text.length === 0 || !element.checkVisibility() || element.matches(".skip")) continue;
		over(element);
		const behind = luminance();
		canvas.fillStyle = getComputedStyle(element).color;
		canvas.fillRect(0, 0, 1, 1);
		const [light, dark] = [behind, luminance()].sort((a, b) => b - a);
		const contrast = (light + 0.05) / (dark + 0.05);
		if (contrast < 4.5) faint.push(text[0].data.trim() + " (" + contrast.toFixed(2) + ")");
	}
	return faint.join(", ");
})()`

func TestPagesInBrowser(t *testing.T) {
	browser, shots := chromium(t), t.ArtifactDir()
	const stack = "/acme/website/production"

	t.Run("sign in with the keyboard", func(t *testing.T) {
		t.Parallel()
		b := newTab(t, browser, serve(t, newService()))
		b.open(stack)
		b.keys("wrong" + kb.Enter)
		b.shown("[role=alert]")
		b.mu.Lock()
		b.problems = nil // the browser reports the status 401
		b.mu.Unlock()
		b.signIn()
		if got := b.eval("location.pathname"); got != stack {
			t.Errorf("after the sign-in the browser is at %s", got)
		}
		if got := b.eval("document.cookie"); got != "" {
			t.Errorf("scripts read the cookie %q", got)
		}
		b.keys(kb.Tab)
		if got := b.eval(`document.activeElement.className`); got != "skip" {
			t.Errorf("the first focus is at .%s, want the link to the content", got)
		}
		b.eval(`document.querySelector(".user button").click()`)
		b.shown("#token")
		b.unproblematic()
	})

	t.Run("follow a deployment", func(t *testing.T) {
		t.Parallel()
		s := newService()
		b := newTab(t, browser, serve(t, s))
		b.open(stack + "/deployments/42")
		b.signIn()
		b.until(`document.querySelectorAll("#log li").length === 7`)
		b.eval(`document.querySelector(".path a[href$=production]").focus()`)

		s.change(func() {
			s.deployment.Log.Lines = append(s.deployment.Log.Lines, page.Line{Time: time.Now(), Text: hostile})
		})
		b.until(`document.querySelectorAll("#log li").length === 8`)
		s.change(func() {
			s.deployment.Log.Lines = append(s.deployment.Log.Lines, page.Line{Time: time.Now(), Text: "the last line"})
			s.deployment.Status, s.deployment.Ended = "succeeded", time.Now()
			s.deployment.Steps[2].Status = "succeeded"
		})
		b.until(`document.querySelector("#log-end").innerText === "End of the log"`)
		got := b.eval(`[...document.querySelectorAll("#log li span")].slice(7)
			.map((line) => line.textContent).join("|")`)
		if got != hostile+"|the last line" {
			t.Errorf("the new lines are %q", got)
		}
		if got := b.eval(`document.querySelector(".heading .status").innerText`); got != "succeeded" {
			t.Errorf("the status is %q", got)
		}
		if got := b.eval(`document.activeElement.pathname`); got != stack {
			t.Errorf("the focus moved to %q", got)
		}
		if got := b.eval(`document.querySelector("main").dataset.refresh`); got != "undefined" {
			t.Errorf("the page of an ended deployment is requested again after %s s", got)
		}
		b.unproblematic()
	})

	t.Run("a log of several pages", func(t *testing.T) {
		t.Parallel()
		s := newService()
		s.lines, s.deployment.Ended = 2, time.Now()
		b := newTab(t, browser, serve(t, s))
		b.open(stack + "/deployments/42")
		b.signIn()
		b.until(`document.querySelector("#log-end").innerText === "End of the log"`)
		got := b.eval(`[...document.querySelectorAll("#log li span")]
			.map((line) => line.textContent.slice(0, 5)).join("|")`)
		if got != "Setup|image|Get s|HEAD |pulum|Updat|<scri" {
			t.Errorf("the log has the lines %q", got)
		}
		b.unproblematic()
	})

	t.Run("a row that is new", func(t *testing.T) {
		t.Parallel()
		s := newService()
		b := newTab(t, browser, serve(t, s))
		b.open("/")
		b.signIn()
		b.eval(`document.querySelector("#d7 .main a").focus()`)
		s.change(func() {
			s.queued = append(s.queued, page.Deployment{
				Key: 9, Stack: s.stack.Stack, Version: 43, Operation: "destroy", Status: "not-started",
			})
		})
		b.until(`document.querySelector("tbody tr").id === "d9"`)
		if got := b.eval(`document.activeElement.closest("tr").id`); got != "d7" {
			t.Errorf("the focus moved to row %s", got)
		}
		b.unproblematic()
	})

	t.Run("a service that stops", func(t *testing.T) {
		t.Parallel()
		s := newService()
		handler := newBrowser(t, s, "").handler
		server := httptest.NewServer(handler)
		defer server.Close()
		b := newTab(t, browser, server.URL)
		b.open(stack + "/deployments/42")
		b.signIn()
		s.change(func() { s.fault = errors.New("down") })
		b.until(`!document.querySelector("#offline").hidden`)
		s.change(func() { s.fault = nil })
		b.until(`document.querySelector("#offline").hidden`)
		s.change(func() { s.session = "" })
		b.shown("#token")
		if got := b.eval("new URLSearchParams(location.search).get('next')"); got != stack+"/deployments/42" {
			t.Errorf("after the end of the session the form leads to %s", got)
		}
	})

	t.Run("without JavaScript", func(t *testing.T) {
		t.Parallel()
		b := newTab(t, browser, serve(t, newService()))
		call(b, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
		b.open(stack + "/deployments/42")
		b.signIn()
		text := b.eval(`document.querySelector("#log").innerText`)
		if !strings.Contains(text, "Serve the new start page") {
			t.Errorf("the log shows %q", text)
		}
		b.unproblematic()
	})

	t.Run("screens", func(t *testing.T) {
		t.Parallel()
		b := newTab(t, browser, serve(t, newService()))
		for i, path := range []string{
			"/sign-in", "/", "/stacks", stack, stack + "/updates", stack + "/updates/11", stack + "/resources",
			stack + "/deployments/42", "/pools", "/none", "/?before=1",
		} {
			b.open(path)
			b.shown("main")
			for _, screen := range []struct {
				name          string
				width, height int64
				scheme        string
			}{
				{"desktop", 1280, 800, "light"}, {"dark", 1280, 800, "dark"},
				{"phone", 360, 740, "light"}, {"phone dark", 360, 740, "dark"},
			} {
				run(b, chromedp.EmulateViewport(screen.width, screen.height))
				call(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{
					{Name: "prefers-color-scheme", Value: screen.scheme}, {Name: "prefers-reduced-motion", Value: "reduce"},
				}})
				image := run(b, chromedp.FullScreenshot(100))
				file := fmt.Sprintf("%s-%02d%s.png", screen.name, i, strings.ReplaceAll(path, "/", "-"))
				if err := os.WriteFile(filepath.Join(shots, file), image, 0o600); err != nil {
					t.Fatal(err)
				}
				if got := b.eval("document.documentElement.scrollWidth - innerWidth"); got != "0" {
					t.Errorf("%s: %s is %s pixels wider than the screen", screen.name, path, got)
				}
				if got := b.eval(faint); got != "" {
					t.Errorf("%s: %s has texts with too little contrast: %s", screen.name, path, got)
				}
			}
			if i == 0 {
				b.signIn()
			}
		}
	})
}
