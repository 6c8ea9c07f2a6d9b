package main

import (
	"strings"
	"testing"
)

// TestHelpAsCommand checks that "help COMMAND" works, as in git and go.
func TestHelpAsCommand(t *testing.T) {
	for _, command := range []string{"", "train", "bench kernels"} {
		words := strings.Fields(command)
		if got, want := mustRun(t, "", append([]string{"help"}, words...)...), mustRun(t, "", append(words, "--help")...); got != want {
			t.Errorf("help %s: %q", command, got)
		}
	}
}

func TestHostPort(t *testing.T) {
	for given, want := range map[string]string{"9464": "127.0.0.1:9464", "0.0.0.0:1": "0.0.0.0:1", "localhost:80": "localhost:80", "[::1]:5": "[::1]:5", "127.0.0.1:0": "127.0.0.1:0"} {
		if got, err := hostPort(given); got != want || err != nil {
			t.Errorf("%s: %s, %v", given, got, err)
		}
	}
	for _, given := range []string{"99999", "9464x", "localhost", "localhost:", "::1:5", "localhost:http"} {
		if got, err := hostPort(given); err == nil || !strings.Contains(err.Error(), "--listen "+given+": want [HOST:]PORT") {
			t.Errorf("%s: %s, %v", given, got, err)
		}
	}
}
