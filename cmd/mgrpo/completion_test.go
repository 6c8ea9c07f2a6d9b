package main

import (
	"os/exec"
	"strings"
	"testing"
)

// TestCompletion runs bash with the completion script that the program prints.
func TestCompletion(t *testing.T) {
	script := succeed(t, "", "completion", "bash")
	for _, c := range []struct{ line, want, not string }{
		{"mgrpo ", "train", "prune"},
		{"mgrpo checkpoint ", "prune", "train"},
		{"mgrpo checkpoint prune --", "--help", "train"},
		{"mgrpo train --", "--resume", "--shell"},
		{"mgrpo train team.yaml --li", "--listen", "--set"},
		{"mgrpo bench kernels --", "--only", "--resume"},
	} {
		program := script + `COMP_WORDS=(` + c.line + `""); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _mgrpo; echo " ${COMPREPLY[*]} "`
		if last := c.line[len(c.line)-1]; last != ' ' {
			program = strings.Replace(program, c.line+`""`, c.line, 1)
		}
		out, err := exec.Command("bash", "-c", "complete() { :; }\n"+program).CombinedOutput()
		if err != nil || !strings.Contains(string(out), " "+c.want+" ") || strings.Contains(string(out), " "+c.not+" ") {
			t.Errorf("%q: %v: %s", c.line, err, out)
		}
	}
	if zsh := succeed(t, "", "completion", "zsh"); !strings.HasPrefix(zsh, "autoload") || !strings.Contains(zsh, "_mgrpo") {
		t.Errorf("zsh: %q", zsh)
	}
}

// TestHelpAsCommand checks that "help COMMAND" works, as in git and go.
func TestHelpAsCommand(t *testing.T) {
	for _, command := range []string{"", "train", "bench kernels"} {
		words := strings.Fields(command)
		if got, want := succeed(t, "", append([]string{"help"}, words...)...), succeed(t, "", append(words, "--help")...); got != want {
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
