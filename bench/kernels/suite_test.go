package kernels

import (
	"regexp"
	"slices"
	"testing"

	"github.com/mgrpo/mgrpo/bench/measure"
	"github.com/mgrpo/mgrpo/cuda/cudatest"
)

// TestQuick runs every case at a small size, on the processor and on a GPU if the machine has
// one. It compares each output with float64, relative to its largest value.
func TestQuick(t *testing.T) {
	for _, device := range cudatest.Devices(t) {
		t.Run(device, func(t *testing.T) { testQuick(t, device) })
	}
}

func testQuick(t *testing.T, device string) {
	r, err := Run(t.Context(), Options{Device: device, Threads: 1, Quick: true, Log: t.Logf}, Shape{})
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, row := range r.Rows {
		ours, bound := row.Providers[0], 2e-6
		switch row.DType {
		case "bfloat16":
			bound = 8e-3 // two roundings to 8 bits
		case measure.BF16Factors:
			bound = 8e-3 // of both factors; of sums the errors are smaller
			if !(ours.MaxError > 1e-4) {
				t.Errorf("%s %s: error %g: nothing was rounded", row.Name, row.Shape, ours.MaxError)
			}
		}
		names[row.Name] = true
		if ours.Name != measure.Ours || ours.Status != "ok" || !(ours.MaxError > 0 && ours.MaxError < bound) {
			t.Errorf("%s %s: %s: error %g of the largest value", row.Name, row.Shape, ours.Status, ours.MaxError)
		}
		if !(row.FloorSeconds > 0) || row.Bytes.Formula == "" {
			t.Errorf("%s %s: no floor", row.Name, row.Shape)
		}
	}
	for _, w := range append(full(), gpu()...) { // every case of the tables is one of these
		if !names[w.label()] && (w.dtype != measure.BF16Factors || w.rounds()) {
			t.Errorf("%s has no quick case", w.label())
		}
	}
}

// TestQuickHasNoShares: a quick run compares nothing with a floor, and its table has a dash in that column.
func TestQuickHasNoShares(t *testing.T) {
	r, err := Run(t.Context(), Options{Device: "cpu", Threads: 1, Quick: true, Only: "swiglu", Log: t.Logf}, Shape{})
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range r.Rows {
		if share := row.Providers[0].PercentOfFloor; share != 0 || slices.ContainsFunc(row.Targets, func(t measure.Target) bool { return t.Kind == measure.Floor }) {
			t.Errorf("%s: %g %% of the floor, targets %v", row.Name, share, row.Targets)
		}
	}
	if !regexp.MustCompile(`\d +- +\d`).MatchString(r.Table()) {
		t.Errorf("no dash between the rate and the error:\n%s", r.Table())
	}
}
