// Package memorytest measures the peak memory of a function, for tests.
//
// This package is private and changes without notice; docs/library.md lists the public ones.
package memorytest

import (
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Peak runs work and returns the largest growth, in bytes, of the process's anonymous resident memory (RssAnon: no file
// pages), sampled every millisecond. The Go runtime and other threads add a few megabytes, so measure work that takes
// hundreds. Peak skips the test where Linux does not report RssAnon.
func Peak(t testing.TB, work func()) int64 {
	t.Helper()
	debug.FreeOSMemory() // garbage of earlier tests must not hide the growth
	before := anonymousMemory(t)
	stop, peak := make(chan struct{}), make(chan int64, 1)
	go func() {
		highest := before
		for {
			select {
			case <-stop:
				peak <- highest
				return
			case <-time.After(time.Millisecond):
				highest = max(highest, anonymousMemory(t))
			}
		}
	}()
	func() {
		defer close(stop) // also if work ends the test
		work()
	}()
	return <-peak - before
}

func anonymousMemory(t testing.TB) int64 {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Skip("no /proc/self/status: anonymous memory cannot be measured here")
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			kb, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			if err != nil {
				t.Error(err)
			}
			return kb << 10
		}
	}
	t.Skip("no RssAnon in /proc/self/status")
	return 0
}
