// Package memorytest measures, for tests, what memory a piece of work takes.
package memorytest

import (
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Peak runs work and returns by how many bytes the process's anonymous resident memory (RssAnon: no file pages)
// stood, at its highest, above what it was before. It is sampled every millisecond. The runtime and other threads
// add some megabytes of their own, so measure work that takes hundreds. Where Linux's figure is missing the test
// is skipped.
func Peak(t testing.TB, work func()) int64 {
	t.Helper()
	debug.FreeOSMemory() // what ran before must not hide what the work takes
	before := anonymous(t)
	stop, peak := make(chan struct{}), make(chan int64, 1)
	go func() {
		highest := before
		for {
			select {
			case <-stop:
				peak <- highest
				return
			case <-time.After(time.Millisecond):
				highest = max(highest, anonymous(t))
			}
		}
	}()
	func() {
		defer close(stop) // also when the work ends the test
		work()
	}()
	return <-peak - before
}

func anonymous(t testing.TB) int64 {
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
