package worker

import (
	"testing"

	"github.com/mgrpo/mgrpo/trainer/run/assemble"
)

// TestHostedIsAlive: what has no device cannot hang on it.
func TestHostedIsAlive(t *testing.T) {
	if err := (Probe{&assemble.Parts{}}).Alive(t.Context()); err != nil {
		t.Error(err)
	}
}
