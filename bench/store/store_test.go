package store

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/bench/measure"
)

// asClient is the variable that makes the test binary run as a client process.
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

// Every invocation of a load gets an answer, and the file has the measured results.
func TestQuick(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(asClient, "1")
	path := filepath.Join(t.TempDir(), "results.json")
	r, err := Run(t.Context(), Options{Client: []string{self}, Quick: true, Log: t.Logf, Save: func(r *Results) error { return measure.WriteFile(path, r) }})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, b := range r.Loads {
		got = append(got, fmt.Sprintf("TLS %v: %d invocations at %v/s", b.TLS, b.Invocations, b.Rate))
		if b.PerSecond <= 0 || b.ExchangeP50 <= 0 || b.ExchangeP50 > b.ExchangeP99 || b.ExchangeP99 > b.ExchangeMax {
			t.Errorf("%+v", b)
		}
	}
	want := []string{"TLS false: 16 invocations at 50/s", "TLS false: 100 invocations at 100/s", "TLS true: 16 invocations at 50/s", "TLS true: 100 invocations at 100/s"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	again, err := measure.ReadFile[Results](path)
	if err != nil || again.Table() != r.Table() {
		t.Errorf("%v: the file does not have the measured results", err)
	}
	if !strings.Contains(r.Table(), "rollout of 2 calls") || strings.Contains(r.Table(), " 0 µs") {
		t.Error(r.Table())
	}
}

// The network cost of a step does not depend on the machine. The calls of a rollout take a
// fixed number of round trips, and its texts and ids a fixed number of bytes.
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

// Cells without a measurement are blank, and a target is compared with the right numbers.
func TestCells(t *testing.T) {
	trips, times := Cost{RoundTrips: 9, Up: 3000, Down: 1000}, Cost{P50: 0.001, P99: 0.01}
	if got, want := trips.Cells(), []string{"9.0", "3000", "1000", "", ""}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if got, want := times.Cells(), []string{"", "", "", "1 ms", "10 ms"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if (LoadResult{ExchangeP99: 0.02}).Prompt() || !(LoadResult{ExchangeP99: 0.019}).Prompt() {
		t.Error("Prompt must be true only for a p99 below 20 ms")
	}
	for _, c := range []struct {
		memory []float64
		flat   bool
	}{{nil, false}, {[]float64{1, 2, 2, 4, 3, 4}, true}, {[]float64{1, 2, 2, 4, 3, 5}, false}} {
		if got := (LoadResult{RedisMemory: c.memory}).Flat(); got != c.flat {
			t.Errorf("flat of %v: %v", c.memory, got)
		}
	}
}
