package trainer

import (
	"strings"
	"testing"
)

// TestGatewayOnOneMachine: a worker of several whose gateway only its own machine can reach is refused if the store is on another machine.
func TestGatewayOnOneMachine(t *testing.T) {
	for _, c := range []struct {
		agents  []string
		sets    []string
		refused bool
	}{
		{[]string{"planner"}, []string{"store.url=redis://10.0.0.1:6379/0"}, true},
		{[]string{"planner"}, []string{"store.url=redis://127.0.0.1:6379/0"}, false},
		{[]string{"planner"}, []string{"store.url=unix:///run/redis.sock"}, false},
		{[]string{"planner"}, []string{"store.url=redis://10.0.0.1:6379/0", "gateway.listen=127.0.0.1:0", "gateway.advertise=http://node0:9464"}, false},
		{[]string{"planner"}, []string{"store.url=redis://10.0.0.1:6379/0", "gateway.listen=127.0.0.1:0", "gateway.advertise=http://127.0.0.1:9464"}, false},
		{nil, nil, false},
	} {
		cfg := load(t, t.TempDir(), append(append(noColdStart, `task.program.command=["true"]`), c.sets...)...)
		server, _, err := listen(cfg, c.agents)
		if err == nil {
			err = server.Close()
		}
		if (err != nil) != c.refused || err != nil && !strings.Contains(err.Error(), "gateway.advertise is not set") {
			t.Errorf("%q: %v", c.sets, err)
		}
	}
}
