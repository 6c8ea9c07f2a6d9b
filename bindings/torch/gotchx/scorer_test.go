package gotchx

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestScorer(t *testing.T) {
	s, err := OpenScorer(t.Context(), "testdata/scorer.pt", "cpu", 1)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	got, err := s.Score(t.Context(), [][]int32{{2, 4, 6, 1}, {1}, {8, 3}})
	if want := []float32{0.75, 0, 0.5}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
}

func TestScorerErrors(t *testing.T) {
	text := filepath.Join(t.TempDir(), "text.pt")
	if err := os.WriteFile(text, []byte("no module"), 0o600); err != nil {
		t.Fatal(err)
	}
	archive := filepath.Join(t.TempDir(), "archive.pt")
	if err := os.WriteFile(archive, []byte("PK\x03\x04 and nothing else"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{text, archive, "testdata/absent.pt"} {
		if _, err := OpenScorer(t.Context(), path, "cpu", 1); err == nil || !strings.Contains(err.Error(), path+": no TorchScript module") {
			t.Errorf("%s: %v", path, err)
		}
	}
	wrong, err := OpenScorer(t.Context(), "testdata/wrong.pt", "cpu", 1)
	if err != nil {
		t.Fatal(err)
	}
	defer wrong.Close()
	if _, err := wrong.Score(t.Context(), [][]int32{{1, 2}, {3}}); err == nil || !strings.Contains(err.Error(), "want float32 [2]") {
		t.Errorf("one score per token: %v", err)
	}
	nan, err := OpenScorer(t.Context(), "testdata/nan.pt", "cpu", 1)
	if err != nil {
		t.Fatal(err)
	}
	defer nan.Close()
	if got, err := nan.Score(t.Context(), [][]int32{{1, 2}}); err != nil || got[0] == got[0] {
		t.Errorf("NaN must reach the verifier, which refuses it: %v, %v", got, err)
	}
	if _, err := wrong.Score(t.Context(), [][]int32{{}}); err == nil {
		t.Error("a batch without tokens was scored")
	}
}
