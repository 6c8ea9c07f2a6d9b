package mcp

import (
	"slices"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/agent/tool"
)

// TestMCPOrigin checks that a call contains the identity of its conversation.
func TestMCPOrigin(t *testing.T) {
	m, err := Connect(t.Context(), stdioConfig(t))
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	at := slices.IndexFunc(m.Tools(), func(t tool.Tool) bool { return t.Name() == "origin" })
	ctx := tool.WithOrigin(t.Context(), tool.Origin{Query: "q-1#epoch=2", Rollout: 3, Agent: "searcher", Invocation: 4, Row: []byte(`{"id":"q-1","room":"B12"}`)})
	got, err := m.Tools()[at].Call(ctx, []byte("{}"))
	for _, want := range []string{`"mgrpo/query":"q-1#epoch=2"`, `"mgrpo/rollout":3`, `"mgrpo/agent":"searcher"`, `"mgrpo/invocation":4`, `"mgrpo/row":{"id":"q-1","room":"B12"}`} {
		if err != nil || !strings.Contains(got, want) {
			t.Errorf("got %s, want %s in it; error %v", got, want, err)
		}
	}
}
