// Package browsertest opens the pages of tests in a headless Chromium.
//
// This package is private and changes without notice; docs/library.md lists the public ones.
package browsertest

import (
	"bytes"
	"context"
	"fmt"
	"image"
	"image/png"
	"iter"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
)

// Page is a page of a Chromium that ends with the test.
type Page struct {
	t       *testing.T
	ctx     context.Context
	console iter.Seq2[chromedp.ConsoleMessage, error]
}

// Start starts Chromium with an empty page.
func Start(t *testing.T) *Page {
	t.Helper()
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.NoSandbox, chromedp.DisableGPU, chromedp.Flag("disable-component-update", true))
	allocator, _ := chromedp.NewExecAllocator(t.Context(), options...)
	for try := 0; ; try++ { // on a busy machine Chromium sometimes does not start
		ctx, stop := chromedp.NewContext(allocator)
		hung := time.AfterFunc(3*time.Minute, stop)
		err := chromedp.Do(ctx)
		if hung.Stop(); err == nil {
			t.Cleanup(stop)
			return &Page{t: t, ctx: ctx, console: chromedp.Console(ctx)}
		}
		if stop(); try == 3 {
			t.Fatalf("Chromium, which the test needs (apt-get install chromium): %v", err)
		}
	}
}

// Open starts Chromium with the page at an address.
func Open(t *testing.T, address string) *Page {
	t.Helper()
	p := Start(t)
	p.Go(address)
	return p
}

func (p *Page) do(what string, actions ...chromedp.Action[chromedp.Void]) {
	p.t.Helper()
	if err := chromedp.Do(p.ctx, actions...); err != nil {
		p.t.Fatalf("%s: %v", what, err)
	}
}

// Go loads the page at an address.
func (p *Page) Go(address string) {
	p.t.Helper()
	p.do(address, chromedp.Navigate(address))
}

// RunOnLoad makes each page that is loaded from now on run a script of the test.
func (p *Page) RunOnLoad(script string) {
	p.t.Helper()
	p.do("script", call(page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: script}))
}

// Screen sets the size of the window and its colour scheme, light or dark.
func (p *Page) Screen(width, height int64, scheme string) {
	p.t.Helper()
	p.do("screen", chromedp.EmulateViewport(width, height, func(size *emulation.SetDeviceMetricsOverrideParams, _ *emulation.SetTouchEmulationEnabledParams) {
		size.Mobile = width < 600
	}), call(emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}}))
}

func call[P, R any](command cdp.Command[P, R], params P) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		_, err := cdp.Call(ctx, target, command, params)
		return err
	})
}

// Eval evaluates an expression in the page and returns its value.
func Eval[T any](p *Page, expression string) T {
	p.t.Helper()
	value, err := chromedp.Run(p.ctx, chromedp.Evaluate[T](expression))
	if err != nil {
		p.t.Fatalf("%s: %v", expression, err)
	}
	return value
}

// Until waits for an expression to be true.
func (p *Page) Until(expression string) {
	p.t.Helper()
	for deadline := time.Now().Add(time.Hour); !Eval[bool](p, "Boolean("+expression+")"); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			p.t.Fatalf("%s did not become true; the page shows %q", expression, Eval[string](p, "document.body.innerText"))
		}
	}
}

// HTML returns the page's present elements.
func (p *Page) HTML() string {
	p.t.Helper()
	return Eval[string](p, "document.documentElement.outerHTML")
}

// Picture returns a screenshot of the window.
func (p *Page) Picture() image.Image {
	p.t.Helper()
	shot, err := chromedp.Run(p.ctx, chromedp.CaptureScreenshot())
	if err != nil {
		p.t.Fatal(err)
	}
	picture, err := png.Decode(bytes.NewReader(shot))
	if err != nil {
		p.t.Fatal(err)
	}
	return picture
}

// Quiet checks that the console is empty, once at the end of a test.
func (p *Page) Quiet() {
	p.t.Helper()
	const end = "end of the test"
	Eval[chromedp.Void](p, fmt.Sprintf("console.log(%q)", end))
	for m, err := range p.console {
		if err != nil {
			p.t.Fatal(err)
		}
		if m.Text == end {
			return
		}
		p.t.Errorf("the console has the message %.1000s, want none", m)
	}
}

// Save writes a picture to a file of the repository. The test belongs to a package in trainer/show.
func Save(t *testing.T, picture image.Image, path string) {
	t.Helper()
	var out bytes.Buffer
	if err := (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&out, picture); err != nil {
		t.Fatal(err)
	}
	if out.Len() > 300<<10 {
		t.Errorf("the picture has %d bytes, want at most 300 KiB", out.Len())
	}
	if err := os.WriteFile(filepath.Join("..", "..", "..", path), out.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}
