// Package tooltest calls tools in tests.
//
// This package is private and changes without notice; docs/library.md lists the public ones.
package tooltest

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/agent/recorded"
)

// Cache opens the recorded answers of a folder, for a replay or to record.
func Cache(t testing.TB, dir string, replay bool) *recorded.Cache {
	t.Helper()
	c, err := recorded.Open(dir, replay)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Arg returns the JSON arguments of a tool with one string argument.
func Arg(t testing.TB, name, value string) json.RawMessage {
	t.Helper()
	b, err := json.Marshal(map[string]string{name: value})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// CallText calls a tool and returns its answer, or "error: " and the error's text.
func CallText(t testing.TB, tool interface {
	Call(context.Context, json.RawMessage) (string, error)
}, name, value string) string {
	t.Helper()
	out, err := tool.Call(t.Context(), Arg(t, name, value))
	if err != nil {
		return "error: " + err.Error()
	}
	return out
}
