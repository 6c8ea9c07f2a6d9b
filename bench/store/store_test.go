package store

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// asClient makes the test binary be a client process.
const asClient = "MGRPO_TEST_AS_CLIENT"

func TestMain(m *testing.M) {
	if os.Getenv(asClient) != "" {
		if err := Client(context.Background(), os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// Every invocation of a load is answered, and what is written is what was measured.
func TestQuick(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(asClient, "1")
	path := filepath.Join(t.TempDir(), "results.json")
	r, err := Run(t.Context(), Options{Client: []string{self}, Quick: true, Log: t.Logf, Save: func(r *Results) error { return r.Write(path) }})
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range r.Loads {
		if b.Invocations != 50 || b.PerSecond <= 0 || b.ExchangeP50 <= 0 || b.ExchangeP50 > b.ExchangeP99 || b.ExchangeP99 > b.ExchangeMax {
			t.Errorf("%+v", b)
		}
	}
	if len(r.Loads) != 2 || r.Loads[0].TLS == r.Loads[1].TLS {
		t.Errorf("%d loads", len(r.Loads))
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var again Results
	if err := json.Unmarshal(data, &again); err != nil || again.Table() != r.Table() {
		t.Errorf("%v: what is written is not what was measured", err)
	}
	if !strings.Contains(r.Table(), "rollout of 2 calls") {
		t.Error(r.Table())
	}
}

// What a step costs on the network does not depend on the machine: a rollout's calls take so many round trips of
// both agents, and its texts and ids so many bytes.
func TestCosts(t *testing.T) {
	all, err := costs(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	rollout := all[0]
	texts := float64(calls*(taskBytes+answerBytes) + answerBytes)
	if rollout.RoundTrips < calls*4 || rollout.RoundTrips > calls*8 || rollout.Up < texts || rollout.Up > 10*texts {
		t.Errorf("%+v", rollout)
	}
}
