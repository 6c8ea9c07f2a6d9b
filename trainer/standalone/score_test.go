package standalone

import (
	"context"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/golden"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
)

func scores(t *testing.T, c *Checkpoint, temperature float64, batch int, in string) ([]reply, Tally) {
	t.Helper()
	var out strings.Builder
	tally, err := c.Score(context.Background(), ScoreOptions{Temperature: temperature, BatchTokens: batch}, strings.NewReader(in), &out)
	if err != nil {
		t.Fatal(err)
	}
	return replies(t, out.String()), tally
}

// TestScoreGoldens: every golden model's rows have the expected log-probs and entropies, at both temperatures.
func TestScoreGoldens(t *testing.T) {
	folders := golden.Computed(golden.Models(t, arch.Families()))
	for _, dir := range folders {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			c, err := Open(context.Background(), golden.Checkpoint(dir), Options{Device: "cpu", Threads: 2, DType: "fp32"})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close(context.Background())
			compareScores(t, c, dir, golden.ReadTensors(t, filepath.Join(dir, "expected.safetensors")))
		})
	}
	golden.CountModels("score", folders, 2)
}

func compareScores(t *testing.T, c *Checkpoint, dir string, want golden.Tensors) {
	rows, width := want.Rows(), int(want["input_ids"].Shape[1])
	var in strings.Builder
	for _, ids := range rows {
		fmt.Fprintf(&in, "{\"ids\":%s}\n", strings.ReplaceAll(fmt.Sprint(ids), " ", ","))
	}
	for _, temperature := range []float64{1, 0.7} {
		suffix := fmt.Sprintf("_t%.1f", temperature)
		logp, entropy := want["logprobs"+suffix].Data, want["entropy"+suffix].Data
		got, _ := scores(t, c, temperature, 4096, in.String())
		tolLogp, tolEntropy := golden.Tolerance(t, dir, "logprobs"+suffix+"_max_abs", 5e-5), golden.Tolerance(t, dir, "entropy"+suffix+"_max_abs", 5e-5)
		for r, ids := range rows {
			if n := len(ids); len(got[r].LogProbs) != n-1 || len(got[r].Entropy) != n-1 {
				t.Fatalf("row %d with %d ids: got %d log-probs", r, n, len(got[r].LogProbs))
			}
			for i := range got[r].LogProbs {
				if d := math.Abs(float64(got[r].LogProbs[i]) - logp[r*(width-1)+i]); !(d <= tolLogp) {
					t.Errorf("T=%g, row %d: log-prob %d differs by %g", temperature, r, i, d)
				}
				if d := math.Abs(float64(got[r].Entropy[i]) - entropy[r*width+i]); !(d <= tolEntropy) {
					t.Errorf("T=%g, row %d: entropy %d differs by %g", temperature, r, i, d)
				}
			}
		}
	}
}

// TestScorePacking: a line's scores have the same bits with any other lines in its forward pass.
func TestScorePacking(t *testing.T) {
	c := openTiny(t, true)
	var in strings.Builder
	for i := range 30 {
		ids := make([]string, 1+i%11)
		for j := range ids {
			ids[j] = fmt.Sprint((i*37 + j*11) % vocabulary)
		}
		fmt.Fprintf(&in, "{\"id\":\"%d\",\"ids\":[%s]}\n", i, strings.Join(ids, ","))
	}
	alone, _ := scores(t, c, 1, 1, in.String())
	for _, batch := range []int{10, 64, 4096} {
		got, tally := scores(t, c, 1, batch, in.String())
		if tally.Lines != 30 || tally.Failed != 0 {
			t.Fatalf("tally %+v", tally)
		}
		for i := range got {
			if string(got[i].ID) != fmt.Sprintf("%q", fmt.Sprint(i)) || !slices.Equal(got[i].LogProbs, alone[i].LogProbs) || !slices.Equal(got[i].Entropy, alone[i].Entropy) {
				t.Errorf("batches of %d tokens: line %d differs", batch, i+1)
			}
		}
	}
	if len(alone[0].LogProbs) != 0 || alone[0].LogProbs == nil {
		t.Errorf("a line with one id: got log-probs %v", alone[0].LogProbs)
	}
	text, _ := scores(t, c, 1, 64, `{"text":"w5 w6 w7"}`)
	ids, _ := scores(t, c, 1, 64, `{"ids":[5,6,7]}`)
	if !slices.Equal(text[0].LogProbs, ids[0].LogProbs) || !slices.Equal(text[0].IDs, []int32{5, 6, 7}) || ids[0].IDs != nil {
		t.Errorf("got %+v for a text and %+v for its ids, want equal ones", text[0], ids[0])
	}
}

func TestScoreRefusesLines(t *testing.T) {
	c := openTiny(t, true)
	lines := slices.Clone(hostile)
	lines = append(lines, struct{ line, want string }{`{"messages":[]}`, "exactly one of"},
		struct{ line, want string }{`{"ids":[` + strings.Repeat("1,", 5000) + `1]}`, "more than the context"})
	var in strings.Builder
	for _, l := range lines {
		in.WriteString(l.line + "\n" + `{"ids":[1,2]}` + "\n")
	}
	got, tally := scores(t, c, 1, 64, in.String())
	if len(got) != 2*len(lines) || tally.Failed != len(lines) {
		t.Fatalf("got %d answers, tally %+v", len(got), tally)
	}
	for i, l := range lines {
		if !strings.Contains(got[2*i].Error, l.want) || got[2*i].Error == "" {
			t.Errorf("%.60s: got answer %+v", l.line, got[2*i])
		}
		if good := got[2*i+1]; good.Error != "" || len(good.LogProbs) != 1 {
			t.Errorf("the line after %.60s: got answer %+v", l.line, good)
		}
	}
}
