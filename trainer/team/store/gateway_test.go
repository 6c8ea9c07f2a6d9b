package store

import "testing"

// TestGateway: every worker gets the secret that was published first, and can look up the other workers' addresses.
func TestGateway(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		boss, help := pair(t, b, Options{})
		if url, err := boss.Gateways.URL(t.Context(), "help"); url != "" || err != nil {
			t.Errorf("before help has published its address: got %q, want none; error %v", url, err)
		}
		first, err := boss.Gateways.Publish(t.Context(), "http://one:1", "first")
		must(t, err)
		second, err := help.Gateways.Publish(t.Context(), "http://two:2", "second")
		must(t, err)
		if first != "first" || second != "first" {
			t.Errorf("got secrets %q and %q, want the first one for both", first, second)
		}
		if url, err := boss.Gateways.URL(t.Context(), "help"); url != "http://two:2" || err != nil {
			t.Errorf("address of help: got %q, want http://two:2; error %v", url, err)
		}
	})
}
