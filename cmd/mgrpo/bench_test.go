package main

import (
	"path/filepath"
	"testing"

	"github.com/mgrpo/mgrpo/bench/measure"
	"github.com/mgrpo/mgrpo/trainer/golden"
)

// TestOnlySave checks that rows of a partial run start a new file or replace rows in an existing one. Rows from a different run are marked.
func TestOnlySave(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kernels.json")
	for i, name := range []string{"gather", "scatter", "gather"} {
		date := []string{"first run", "first run", "second run"}[i]
		rows := []measure.Row{{Name: name}}
		if err := (benchFlags{Out: path, Only: name}).save(&measure.Results{Suite: "kernels", Date: date, Rows: rows}); err != nil {
			t.Fatal(err)
		}
		all, err := measure.Read(path)
		if err != nil {
			t.Fatal(err)
		}
		if want := min(i+1, 2); len(all.Rows) != want {
			t.Errorf("after %s: %d rows, want %d", name, len(all.Rows), want)
		}
		for _, row := range all.Rows {
			if again := date == "second run" && row.Name == name; (row.Again != nil) != again {
				t.Errorf("%s, %s: marked %v, want %v", date, row.Name, row.Again != nil, again)
			}
		}
	}
}

// TestBenchKernelsFlags checks that flags without an effect are refused.
func TestBenchKernelsFlags(t *testing.T) {
	for _, c := range []struct {
		flags benchKernelsCmd
		want  string
	}{
		{benchKernelsCmd{List: true, Shape: "4x4"}, "leave out --shape, --dtype and --csv"},
		{benchKernelsCmd{List: true, DType: "bf16"}, "leave out --shape, --dtype and --csv"},
		{benchKernelsCmd{List: true, benchFlags: benchFlags{CSV: true}}, "leave out --shape, --dtype and --csv"},
		{benchKernelsCmd{List: true, benchFlags: benchFlags{Only: "softmax"}}, `no kernel's name contains "softmax"`},
		{benchKernelsCmd{DType: "bf16", benchFlags: benchFlags{Only: "rms_norm"}}, "give a shape, too"},
		{benchKernelsCmd{Shape: "4x4"}, "--only"},
	} {
		golden.WantError(t, c.flags.Run(t.Context()), c.want)
	}
}
