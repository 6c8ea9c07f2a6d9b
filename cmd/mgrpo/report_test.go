package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestReportOut: a report replaces a file, also behind a link, but never a pipe or a device. The error of a file that cannot be written
// names the file and the option.
func TestReportOut(t *testing.T) {
	dir := t.TempDir()
	run, file, link, pipe := filepath.Join(dir, "run"), filepath.Join(dir, "a.html"), filepath.Join(dir, "link"), filepath.Join(dir, "pipe")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.Mkdir(run, 0o755))
	must(os.WriteFile(filepath.Join(run, "metrics.jsonl"), []byte(`{"kind":"step","agent":"a","step":1,"values":{"reward_mean":1}}`+"\n"), 0o644))
	must(os.WriteFile(file, nil, 0o644))
	must(os.Symlink(file, link))
	must(syscall.Mkfifo(pipe, 0o600))
	mustRun(t, "", "report", run, "-o", link)
	if text, err := os.ReadFile(file); err != nil || !strings.Contains(string(text), "<html") {
		t.Errorf("the file behind a link: %.80q, error %v", text, err)
	}
	reader, err := os.OpenFile(pipe, os.O_RDWR, 0) // both, so that opening does not wait
	must(err)
	defer reader.Close()
	read := make(chan string)
	go func() {
		head := make([]byte, 15)
		n, _ := reader.Read(head)
		read <- string(head[:n])
		_, _ = io.Copy(io.Discard, reader)
	}()
	mustRun(t, "", "report", run, "-o", pipe)
	if head := <-read; !strings.HasPrefix(strings.ToLower(head), "<!doctype") {
		t.Errorf("the pipe got %q", head)
	}
	if info, err := os.Lstat(pipe); err != nil || info.Mode().IsRegular() {
		t.Errorf("the pipe was replaced: %v, error %v", info, err)
	}
	dangling := filepath.Join(dir, "dangling")
	must(os.Symlink("absent.html", dangling))
	for _, path := range []string{filepath.Join(dir, "none", "a.html"), dir, dangling} {
		wantRefusal(t, "", []string{"report", run, "-o", path}, path+" cannot be written", "--out")
	}
	if to, err := os.Readlink(dangling); to != "absent.html" {
		t.Errorf("the link without a file was replaced: %v", err)
	}
}
