package durable

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unicode"
)

// Holder describes a process that holds a folder.
type Holder struct {
	PID     int       `json:"pid"`
	Host    string    `json:"host"`
	Boot    string    `json:"boot"`    // identifies the running kernel; processes with equal values see each other's flock
	Command string    `json:"command"` // such as "mgrpo train"
	Since   time.Time `json:"since"`
	Sharing Sharing   `json:"shares"`

	path string
	beat time.Time // modification time of the record when it was read
}

// HeldError is the error of a process that may not use a folder, because other processes do.
type HeldError struct {
	Dir     string
	Holders []Holder // holders that have a record; empty if it could not be read
}

// Error names the folder and its holders, and states what to do.
func (e *HeldError) Error() string {
	var who []string
	for _, h := range e.Holders {
		who = append(who, h.String())
	}
	return fmt.Sprintf("%s is in use by %s: stop it first, or choose another folder", e.Dir, cmp.Or(strings.Join(who, " and "), "another process"))
}

// String returns the holder's command, work, process id, host and start.
func (h Holder) String() string {
	command := h.Command
	if h.Sharing != Exclusive {
		command += fmt.Sprintf(" (%s)", h.Sharing)
	}
	return fmt.Sprintf("%s, process %d on %s since %s", command, h.PID, h.Host, h.Since.Format(time.DateTime))
}

// holders reads the records in a folder of locks and skips those that cannot be read.
func holders(locks string) (out []Holder) {
	entries, _ := os.ReadDir(locks)
	for _, e := range entries {
		path := filepath.Join(locks, e.Name())
		if e.Name() == lockFile || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		h := Holder{path: path, beat: recordTime(path), Command: "a process", Host: "an unknown host"}
		if text, err := ReadSmall(path, 1<<16); err == nil {
			_ = json.Unmarshal(text, &h)
		}
		h.Host, h.Command = printable(h.Host), printable(h.Command)
		out = append(out, h)
	}
	return out
}

// printable replaces the control characters of a text that any process may have written.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}

// recordTime returns the modification time of a record, or zero if there is no record. It opens the file, because a network file
// system then asks its server.
func recordTime(path string) time.Time {
	f, err := os.Open(path)
	if err != nil {
		return time.Time{}
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}

// bootID returns an identifier of the running kernel.
func bootID() string {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		host, _ := os.Hostname()
		return host
	}
	return strings.TrimSpace(string(text))
}
