//go:build failpoint

package failpoint

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"syscall"
	"testing"
)

// A process logs the chosen passage and then dies there.
func TestKill(t *testing.T) {
	if os.Getenv(LogEnv) != "" {
		defer Around("first")()
		for range 3 {
			Here("second", "part")
		}
		return
	}
	log := filepath.Join(t.TempDir(), "log")
	self := exec.Command(os.Args[0], "-test.run=^TestKill$")
	self.Env = append(os.Environ(), KillEnv+"=second.part:2", LogEnv+"="+log)
	err := self.Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Errorf("the process ended with %v", err)
	}
	lines, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	if !regexp.MustCompile(`^\d+ first\.before\n\d+ second\.part\n\d+ second\.part\n$`).Match(lines) {
		t.Errorf("the log is %q", lines)
	}
}
