package dashboard_test

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"
)

// browser is a page of a headless Chromium, which is steered over two pipes (the DevTools protocol).
type browser struct {
	t       *testing.T
	in      io.Writer
	session string

	mu       sync.Mutex
	sent     int
	replies  map[int]chan reply
	messages []string // errors, warnings and other messages of its console
	gone     error    // error that ended the connection to the browser, or nil
}

type reply struct {
	ID     int             `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	Result json.RawMessage `json:"result"`
	Error  *struct {
		Message string `json:"message"`
	} `json:"error"`
}

// openBrowser starts Chromium with an empty page.
func openBrowser(t *testing.T) *browser {
	t.Helper()
	var b *browser
	for try := 0; ; try++ { // on a busy machine Chromium sometimes does not start
		b = &browser{t: t, replies: map[int]chan reply{}}
		stop := b.start()
		err := b.request("Browser.getVersion", nil, nil, 3*time.Minute)
		if err == nil {
			t.Cleanup(stop)
			break
		}
		if stop(); try == 3 {
			t.Fatal(err)
		}
	}
	var target struct{ TargetID, SessionID string }
	b.call("Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	b.call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &target)
	b.session = target.SessionID
	for _, domain := range []string{"Runtime", "Log", "Page"} {
		b.call(domain+".enable", nil, nil)
	}
	return b
}

// start starts Chromium. stop ends it.
func (b *browser) start() (stop func()) {
	program := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			program = path
			break
		}
	}
	if program == "" {
		b.t.Fatal("Chromium is not installed, and the test needs it: apt-get install chromium")
	}
	read, in, err := os.Pipe()
	out, write, err2 := os.Pipe()
	if err := errors.Join(err, err2); err != nil {
		b.t.Fatal(err)
	}
	cmd := exec.Command(program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
		"--disable-component-update", "--disable-sync", "--hide-scrollbars", "--remote-debugging-pipe", "--user-data-dir="+b.t.TempDir(), "about:blank")
	cmd.ExtraFiles = []*os.File{read, write}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		b.t.Fatal(err)
	}
	read.Close()
	write.Close()
	b.in = in
	heard := make(chan struct{})
	go func() { b.listen(out); close(heard) }()
	return func() {
		in.Close() // Chromium ends when its pipe is closed
		defer time.AfterFunc(10*time.Second, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }).Stop()
		_ = cmd.Wait()
		<-heard
		out.Close()
	}
}

// listen reads the browser's replies and console messages until the connection ends.
func (b *browser) listen(out io.Reader) {
	for r := bufio.NewReader(out); ; {
		text, err := r.ReadBytes(0)
		var m reply
		if err == nil {
			err = json.Unmarshal(text[:len(text)-1], &m)
		}
		b.mu.Lock()
		if err != nil {
			b.gone = err
			for _, waiting := range b.replies {
				close(waiting)
			}
			b.mu.Unlock()
			return
		}
		if answer := b.replies[m.ID]; answer != nil {
			answer <- m
			delete(b.replies, m.ID)
		} else if slices.Contains([]string{"Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"}, m.Method) {
			b.messages = append(b.messages, string(m.Params))
		}
		b.mu.Unlock()
	}
}

// call sends a command and reads its result.
func (b *browser) call(method string, params map[string]any, result any) {
	b.t.Helper()
	if err := b.request(method, params, result, time.Hour); err != nil {
		b.t.Fatal(err)
	}
}

func (b *browser) request(method string, params map[string]any, result any, patience time.Duration) error {
	b.mu.Lock()
	b.sent++
	message := map[string]any{"id": b.sent, "method": method, "params": params}
	if params == nil {
		message["params"] = struct{}{}
	}
	if b.session != "" {
		message["sessionId"] = b.session
	}
	answer := make(chan reply, 1)
	b.replies[b.sent] = answer
	gone := b.gone
	b.mu.Unlock()
	text, err := json.Marshal(message)
	if err == nil && gone == nil {
		_, err = b.in.Write(append(text, 0))
	}
	if err = errors.Join(err, gone); err != nil {
		return fmt.Errorf("%s: %w", method, err)
	}
	select {
	case r, ok := <-answer:
		if !ok || r.Error != nil {
			return fmt.Errorf("%s: the browser has ended, or replied with an error: %+v", method, r.Error)
		}
		if result == nil {
			return nil
		}
		return json.Unmarshal(r.Result, result)
	case <-time.After(patience):
		return fmt.Errorf("%s: no answer from the browser", method)
	}
}

// open goes to an address.
func (b *browser) open(url string) {
	b.t.Helper()
	var done struct{ ErrorText string }
	b.call("Page.navigate", map[string]any{"url": url}, &done)
	if done.ErrorText != "" {
		b.t.Fatalf("%s: %s", url, done.ErrorText)
	}
}

// runOnLoad has every page that is opened run a script of the test.
func (b *browser) runOnLoad(script string) {
	b.t.Helper()
	b.call("Page.addScriptToEvaluateOnNewDocument", map[string]any{"source": script}, nil)
}

// eval evaluates an expression in the page, and reads its value.
func eval[T any](b *browser, expression string) (value T) {
	b.t.Helper()
	var out struct {
		Result           struct{ Value json.RawMessage }
		ExceptionDetails json.RawMessage
	}
	b.call("Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true}, &out)
	if out.ExceptionDetails != nil {
		b.t.Fatalf("%s: %s", expression, out.ExceptionDetails)
	}
	if err := json.Unmarshal(out.Result.Value, &value); err != nil {
		b.t.Fatalf("%s is %s: %v", expression, out.Result.Value, err)
	}
	return value
}

// until waits for an expression to be true.
func (b *browser) until(expression string) {
	b.t.Helper()
	for deadline := time.Now().Add(time.Hour); ; time.Sleep(50 * time.Millisecond) {
		if eval[bool](b, "Boolean("+expression+")") {
			return
		}
		if time.Now().After(deadline) {
			b.t.Fatalf("%s did not become true; the page shows %q", expression, eval[string](b, "document.body.innerText"))
		}
	}
}

// screen sets the size of the window and its colour scheme, light or dark.
func (b *browser) screen(width, height int, scheme string) {
	b.t.Helper()
	b.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}, nil)
	b.call("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": scheme}}}, nil)
}

// picture returns a screenshot of the window as PNG.
func (b *browser) picture() []byte {
	b.t.Helper()
	var shot struct{ Data string }
	b.call("Page.captureScreenshot", map[string]any{"format": "png"}, &shot)
	out, err := base64.StdEncoding.DecodeString(shot.Data)
	if err != nil {
		b.t.Fatal(err)
	}
	return out
}

// quiet checks that the console is empty.
func (b *browser) quiet() {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, m := range b.messages {
		b.t.Errorf("the console has the message %.1000s, want none", m)
	}
}
