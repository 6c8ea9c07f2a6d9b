package store

import "testing"

// TestGateway: every worker gets the same secret, the first that was brought, and finds the others' addresses.
func TestGateway(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		boss, help := pair(t, b, Options{})
		if url, err := boss.Gateway(t.Context(), "help"); url != "" || err != nil {
			t.Errorf("before it has said so help is at %q, %v", url, err)
		}
		first, err := boss.PublishGateway(t.Context(), "http://one:1", "first")
		must(t, err)
		second, err := help.PublishGateway(t.Context(), "http://two:2", "second")
		must(t, err)
		if first != "first" || second != "first" {
			t.Errorf("secrets %q and %q", first, second)
		}
		if url, err := boss.Gateway(t.Context(), "help"); url != "http://two:2" || err != nil {
			t.Errorf("help is at %q, %v", url, err)
		}
	})
}
