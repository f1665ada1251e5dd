// Package browsertest drives a real Chromium for tests of pages.
package browsertest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

const (
	patience = 90 * time.Second // for one condition; it passes only when something is broken
	lifetime = 10 * time.Minute // of a browser
)

// Browser is one Chromium with one tab, which goes with the test.
type Browser struct {
	tb  testing.TB
	ctx context.Context

	mu   sync.Mutex
	said []string
}

// New starts a browser: the one that CHROMIUM names, else the one that is installed.
func New(tb testing.TB) *Browser {
	tb.Helper()
	path := os.Getenv("CHROMIUM")
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path != "" {
			break
		}
		path, _ = exec.LookPath(name) // "" when it is not there
	}
	if path == "" {
		tb.Fatal("no Chromium: apt-get install chromium, or name one in CHROMIUM")
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-background-networking", true), chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-sync", true))
	allocator, stop := chromedp.NewExecAllocator(context.WithoutCancel(tb.Context()), options...)
	tb.Cleanup(stop)
	ctx, leave := chromedp.NewContext(allocator)
	tb.Cleanup(leave)
	if err := chromedp.Do(ctx); err != nil { // the browser starts here; the context it starts with must have no deadline
		tb.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(ctx, lifetime)
	tb.Cleanup(cancel)
	b := &Browser{tb: tb, ctx: ctx}
	if err := chromedp.Listen(ctx, b.hear); err != nil {
		tb.Fatal(err)
	}
	if _, err := chromedp.Call(ctx, log.Enable, cdp.Empty{}); err != nil {
		tb.Fatal(err)
	}
	return b
}

func (b *Browser) hear(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *log.EventEntryAdded:
		b.said = append(b.said, string(e.Entry.Level)+": "+e.Entry.Text+" "+e.Entry.URL)
	case *runtime.EventExceptionThrown:
		b.said = append(b.said, "exception: "+e.ExceptionDetails.Text)
	}
}

// Complaints are what the browser's console said since the last call: violations of the content security policy, failed
// loads, errors of scripts.
func (b *Browser) Complaints() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	taken := b.said
	b.said = nil
	return taken
}

// Do runs steps.
func (b *Browser) Do(steps ...chromedp.Action[chromedp.Void]) {
	b.tb.Helper()
	if err := chromedp.Do(b.ctx, steps...); err != nil {
		b.tb.Fatal(err)
	}
}

// Open goes to a page and waits until it is loaded.
func (b *Browser) Open(url string) {
	b.tb.Helper()
	b.Do(chromedp.Navigate(url))
}

// Click waits for the first element of a selector and clicks it.
func (b *Browser) Click(selector string) {
	b.tb.Helper()
	b.Do(chromedp.Click(chromedp.CSS(selector)))
}

// Type waits for a field, empties it and types into it.
func (b *Browser) Type(selector, text string) {
	b.tb.Helper()
	b.Do(chromedp.WaitVisible(chromedp.CSS(selector)))
	b.Run(fmt.Sprintf("document.querySelector(%q).value = ''", selector))
	b.Do(chromedp.SendKeys(chromedp.CSS(selector), text))
}

// Press presses keys where the focus is.
func (b *Browser) Press(keys string) {
	b.tb.Helper()
	b.Do(chromedp.KeyEvent(keys))
}

// Run runs a script.
func (b *Browser) Run(script string) {
	b.tb.Helper()
	b.Do(chromedp.Evaluate[chromedp.Void](script))
}

// Text is the value of an expression that is a string.
func (b *Browser) Text(expression string) string { b.tb.Helper(); return value[string](b, expression) }

// True is the value of any expression as a condition.
func (b *Browser) True(expression string) bool {
	b.tb.Helper()
	return value[bool](b, "Boolean("+expression+")")
}

func value[T any](b *Browser, expression string) T {
	b.tb.Helper()
	v, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](expression))
	if err != nil {
		b.tb.Fatalf("%s: %v", expression, err)
	}
	return v
}

// Until waits for an expression to be true. It looks again and again from outside, since a page that is left takes what
// waits inside it along.
func (b *Browser) Until(expression string) {
	b.tb.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for {
		yes, err := chromedp.Run(b.ctx, chromedp.Evaluate[bool]("Boolean("+expression+")"))
		if err == nil && yes {
			return
		}
		select {
		case <-again.C:
		case <-deadline.C:
			page, _ := chromedp.Run(b.ctx, chromedp.Evaluate[string]("location.href + '\\n' + document.body.innerText.slice(-1500)"))
			b.tb.Fatalf("waited %s for %s: %v\n%s", patience, expression, err, page)
		}
	}
}

// Size sets the window's size in CSS pixels.
func (b *Browser) Size(width, height int64) {
	b.tb.Helper()
	b.Do(chromedp.EmulateViewport(width, height))
}

// Dark makes the system dark, or light.
func (b *Browser) Dark(dark bool) {
	b.tb.Helper()
	scheme := map[bool]string{true: "dark", false: "light"}[dark]
	features := []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}
	if _, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: features}); err != nil {
		b.tb.Fatal(err)
	}
}

// Scripts switches JavaScript off for the pages that are opened from now on, or on again.
func (b *Browser) Scripts(on bool) {
	b.tb.Helper()
	if _, err := chromedp.Call(b.ctx, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: !on}); err != nil {
		b.tb.Fatal(err)
	}
}

// Screenshot is the visible part of the page as PNG.
func (b *Browser) Screenshot() []byte {
	b.tb.Helper()
	png, err := chromedp.Run(b.ctx, chromedp.CaptureScreenshot())
	if err != nil {
		b.tb.Fatal(err)
	}
	return png
}
