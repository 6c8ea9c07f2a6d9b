package endtoend

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer"
)

// TestGatewayOnOneMachine: a worker of several whose gateway only its own machine can reach is refused if the store is on another machine.
func TestGatewayOnOneMachine(t *testing.T) {
	const far = "store.url=redis://10.0.0.1:6379/0"
	ended, cancel := context.WithCancel(t.Context())
	cancel() // a worker that is not refused ends when it connects with the store
	for _, c := range []struct {
		agents  []string
		sets    []string
		refused bool
	}{
		{[]string{"planner"}, []string{far}, true},
		{[]string{"planner"}, []string{"store.url=redis://127.0.0.1:6379/0"}, false},
		{[]string{"planner"}, []string{"store.url=unix:///run/redis.sock"}, false},
		{[]string{"planner"}, []string{far, "gateway.listen=127.0.0.1:0", "gateway.advertise=http://node0:9464"}, false},
		{[]string{"planner"}, []string{far, "gateway.listen=127.0.0.1:0", "gateway.advertise=http://127.0.0.1:9464"}, false},
		{nil, nil, false},
	} {
		cfg := load(t, t.TempDir(), append(append(noColdStart, `task.program.command=["true"]`, "store.allow_insecure=anyone may read and write"), c.sets...)...)
		err := trainer.Train(ended, cfg, trainer.TrainOptions{Agents: c.agents})
		if refused := err != nil && strings.Contains(err.Error(), "gateway.advertise is not set"); refused != c.refused || !refused && !errors.Is(err, context.Canceled) {
			t.Errorf("%q: %v", c.sets, err)
		}
	}
}
