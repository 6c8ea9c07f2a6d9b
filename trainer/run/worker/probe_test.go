package worker

import (
	"testing"

	"github.com/mgrpo/mgrpo/trainer/run/assemble"
)

// TestHostedIsAlive: the probe of an agent with a hosted model always succeeds, because the agent has no device.
func TestHostedIsAlive(t *testing.T) {
	if err := (Probe{&assemble.AgentParts{}}).Alive(t.Context()); err != nil {
		t.Error(err)
	}
}
