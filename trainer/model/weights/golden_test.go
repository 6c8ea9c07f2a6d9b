package weights

import (
	"math"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/golden"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
)

type checksum struct {
	Sum   float64 `json:"sum"`
	Sumsq float64 `json:"sumsq"`
	Numel int64   `json:"numel"`
}

// checksumOf accumulates one tensor in float64, in reads of different sizes.
func checksumOf(t *testing.T, s *Source, name string) (c checksum) {
	t.Helper()
	err := s.tensors[name].eachChunk(make([]float32, 1000), func(_ int64, values []float32) error {
		for _, v := range values {
			c.Sum += float64(v)
			c.Sumsq += float64(v) * float64(v)
		}
		c.Numel += int64(len(values))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (c checksum) differs(want checksum, sumTol, sumsqTol float64) bool {
	return c.Numel != want.Numel || !(math.Abs(c.Sum-want.Sum) <= sumTol) || !(math.Abs(c.Sumsq-want.Sumsq) <= sumsqTol*want.Sumsq)
}

func (c checksum) plus(more checksum) checksum {
	return checksum{c.Sum + more.Sum, c.Sumsq + more.Sumsq, c.Numel + more.Numel}
}

// publishedName returns the name of the golden tensor with a tensor's values: the tensor itself, or the fused experts that contain it.
func publishedName(t arch.Tensor, published map[string]checksum) string {
	there := func(name string) bool { return name != "" && published[name].Numel > 0 }
	for _, name := range []string{t.Fused.Name, t.Name} {
		if name, ok := golden.Published(name, there); ok {
			return name
		}
	}
	return t.Name
}

func TestGoldenWeights(t *testing.T) {
	cases := golden.Models(t, arch.Families())
	for _, dir := range cases {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			var expected struct {
				Initial map[string]checksum `json:"checksums_initial"`
			}
			golden.ReadJSON(t, filepath.Join(dir, "expected.json"), &expected)
			s := openChecked(t, golden.Checkpoint(dir))
			sums := map[string]checksum{}
			for _, spec := range s.Config().Layout().Tensors() {
				name := publishedName(spec, expected.Initial)
				if _, there := expected.Initial[name]; !there && golden.Untrained(t, dir, name) {
					continue
				}
				sums[name] = sums[name].plus(checksumOf(t, s, spec.Name))
			}
			if len(sums) != len(expected.Initial) {
				t.Errorf("%d tensors, want %d", len(sums), len(expected.Initial))
			}
			for name, want := range expected.Initial {
				if got := sums[name]; got.differs(want, 1e-9, 1e-12) {
					t.Errorf("%s: %+v, want %+v", name, got, want)
				}
			}
		})
	}
	golden.CountModels("checksums_initial", cases, 1)
}

// openChecked opens and checks a checkpoint, which must be valid.
func openChecked(t *testing.T, path string) *Source {
	t.Helper()
	s, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	if err := s.Check(); err != nil {
		t.Fatal(err)
	}
	return s
}

func openAndCheck(path string) ([]string, error) {
	s, err := Open(path)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	err = s.Check()
	return s.Notes(), err
}

func TestGoldenBroken(t *testing.T) {
	var table struct{ Cases []golden.Broken }
	dir := filepath.Join(golden.Dir(t, "models"), "bad")
	golden.Read(t, "models", "bad/cases.json", &table)
	for _, c := range table.Cases {
		t.Run(c.Name, func(t *testing.T) {
			before := allocated()
			notes, err := openAndCheck(filepath.Join(dir, c.Name))
			if used := allocated() - before; used > 16<<20 {
				t.Errorf("allocated %d bytes", used)
			}
			message := strings.Join(notes, "\n")
			switch {
			case c.Must == "load" && err != nil:
				t.Fatal(err)
			case c.Must == "refuse" && err == nil:
				t.Fatal("accepted")
			case err != nil:
				message += err.Error()
				t.Log(err)
				if !strings.Contains(message, c.Name) {
					t.Errorf("%q does not contain the folder's name", message)
				}
			}
			c.WantNamed(t, message)
		})
	}
	golden.Count("models/bad", len(table.Cases))
}

// allocated returns the total number of bytes allocated on the heap so far.
func allocated() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.TotalAlloc
}
