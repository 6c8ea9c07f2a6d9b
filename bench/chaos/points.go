package main

import (
	"bytes"
	"os"
	"strconv"
	"strings"
)

// phaseOf returns the phase of a step that contains a failpoint.
func phaseOf(point string) string {
	if point == "" {
		return "start" // the process has not passed a failpoint yet
	}
	phase, _, _ := strings.Cut(point, ".")
	return phase
}

// lastPoint returns the last failpoint in a process's log, and its time. The name is "" before the first failpoint.
func lastPoint(log string) (name string, at int64) {
	data, err := os.ReadFile(log)
	if err != nil {
		return "", 0
	}
	data = bytes.TrimRight(data, "\n")
	last := string(data[bytes.LastIndexByte(data, '\n')+1:])
	time, name, _ := strings.Cut(last, " ")
	at, _ = strconv.ParseInt(time, 10, 64)
	return name, at
}

// countPoints adds the passages in a log to counts.
func countPoints(log string, counts map[string]int) {
	data, err := os.ReadFile(log)
	if err != nil {
		return
	}
	for line := range strings.Lines(string(data)) {
		if _, name, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			counts[name]++
		}
	}
}
