// Package browsertest shows pages in a real browser without a window: Debian's chromium. No production code imports it.
// It is here because the tests of both pages, the agent's and the service's, may import a package of runtime.
package browsertest

import (
	"context"
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
)

// Tab is a tab of a real browser without a window.
type Tab struct {
	t   *testing.T
	ctx context.Context
	url string // of the server

	mu       sync.Mutex
	problems []string // what the browser reported, such as a violation of the Content-Security-Policy
}

// Start starts a browser until the end of the test. Without the program, the test is skipped, but under CI it fails.
func Start(t *testing.T) context.Context {
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

// New opens a tab with a profile of its own. Its pages are those of a server.
func New(t *testing.T, browser context.Context, url string) *Tab {
	t.Helper()
	ctx, cancel := chromedp.NewContext(browser, chromedp.WithNewBrowserContext())
	t.Cleanup(cancel)
	b := &Tab{t: t, ctx: ctx, url: url}
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
	Call(b, log.Enable, cdp.Empty{})
	return b
}

// waitLimit limits each action of the browser, and each wait for a change of a page.
const waitLimit = time.Minute

// Run runs an action in the tab.
func Run[T any](b *Tab, action chromedp.Action[T]) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, waitLimit)
	defer cancel()
	result, err := chromedp.Run(ctx, action)
	if err != nil {
		b.t.Fatal(err)
	}
	return result
}

// Call sends a command to the tab.
func Call[P, R any](b *Tab, command cdp.Command[P, R], params P) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, waitLimit)
	defer cancel()
	if _, err := chromedp.Call(ctx, command, params); err != nil {
		b.t.Fatal(err)
	}
}

// Open loads a page of the server.
func (b *Tab) Open(path string) { b.t.Helper(); Run(b, chromedp.Navigate(b.url+path)) }

// Keys types a text.
func (b *Tab) Keys(text string) { b.t.Helper(); Run(b, chromedp.KeyEvent(text)) }

// Eval returns the value of an expression in the page as a text.
func (b *Tab) Eval(expression string) string {
	b.t.Helper()
	return Run(b, chromedp.Evaluate[string]("String("+expression+")"))
}

// Until waits for an expression in the page to become true. While the browser loads another page, an expression may
// have no value.
func (b *Tab) Until(expression string) {
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
			b.t.Fatalf("%s is not true: %v; the page shows:\n%s", expression, err, b.Eval("document.body.innerText"))
		}
	}
}

// Shown waits for an element.
func (b *Tab) Shown(selector string) {
	b.t.Helper()
	b.Until("document.querySelector(`" + selector + "`)")
}

// Unproblematic checks that the browser reported nothing.
func (b *Tab) Unproblematic() {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.problems) > 0 {
		b.t.Errorf("the browser reports: %s", strings.Join(b.problems, "\n"))
	}
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

// Forget forgets what the browser has reported.
func (b *Tab) Forget() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.problems = nil
}

// screens are the screens on which each page must be readable.
var screens = []struct {
	name          string
	width, height int64
	scheme        string
}{
	{"desktop", 1280, 800, "light"}, {"dark", 1280, 800, "dark"},
	{"phone", 360, 740, "light"}, {"phone dark", 360, 740, "dark"},
}

// CheckScreens checks on screens of several sizes, light and dark, that the page fits and that its texts are readable.
// It writes pictures of them into the directory of the test's artifacts.
func (b *Tab) CheckScreens(name string) {
	b.t.Helper()
	for _, screen := range screens {
		Run(b, chromedp.EmulateViewport(screen.width, screen.height))
		Call(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{
			{Name: "prefers-color-scheme", Value: screen.scheme}, {Name: "prefers-reduced-motion", Value: "reduce"},
		}})
		image := Run(b, chromedp.FullScreenshot(100))
		file := filepath.Join(b.t.ArtifactDir(), screen.name+"-"+name+".png")
		if err := os.WriteFile(file, image, 0o600); err != nil {
			b.t.Fatal(err)
		}
		if got := b.Eval("document.documentElement.scrollWidth - innerWidth"); got != "0" {
			b.t.Errorf("%s: %s is %s pixels wider than the screen", screen.name, name, got)
		}
		if got := b.Eval(faint); got != "" {
			b.t.Errorf("%s: %s has texts with too little contrast: %s", screen.name, name, got)
		}
	}
}
