package main

import (
	"strings"
	"testing"
)

// At start-up, gotch creates a folder in $HOME and ends the process if it cannot. mgrpo must run for
// a user without a home, and so must the sandbox of the tool python, which has an empty environment.
func TestNoHome(t *testing.T) {
	const noHome = "HOME=/proc/nobody" // even root cannot create this folder
	bare := []string{noHome, asProgram + "=1", "OMP_NUM_THREADS=1"}
	for _, c := range []struct {
		name, want string
		env        []string
	}{
		{"version", "LibTorch", bare},
		{"sandbox", "invalid character", append(bare, "MGRPO_SANDBOX_PYTHON=none")},
	} {
		cmd := program(t, "", "version")
		cmd.Env = c.env
		out, err := cmd.CombinedOutput()
		if !strings.Contains(string(out), c.want) {
			t.Errorf("%s: %v: %s", c.name, err, out)
		}
	}
}
