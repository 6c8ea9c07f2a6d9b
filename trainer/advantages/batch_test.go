package advantages

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gorgonia.org/tensor"

	"github.com/mgrpo/mgrpo/trainer/mgrpo"
	"github.com/mgrpo/mgrpo/trainer/mgrpo/oracle"
)

// matrix returns a float64 array [rows, columns].
func matrix(rows, columns int, values ...float64) *tensor.Dense {
	return tensor.New(tensor.WithShape(rows, columns), tensor.WithBacking(values))
}

// A batch has the oracle's advantages for each query, in every memory layout of the arrays.
func TestBatch(t *testing.T) {
	rewards := matrix(3, 4, 1, 0, 0.5, 0.25, 0.1, 0.1, 0.1, 0.1, 2, 4, 9, -1)
	weights := matrix(3, 4, 1, 1, 1, 2, 1, 1, 1, 1, 1, 1, 1, 0)
	turned := matrix(4, 3, 1, 0.1, 2, 0, 0.1, 4, 0.5, 0.1, 9, 0.25, 0.1, -1)
	if err := turned.T(); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"mgrpo", "trl", "dr_grpo"} {
		convention, err := mgrpo.ConventionByName(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, layout := range []*tensor.Dense{rewards, turned} {
			got, stats, err := Batch(layout, weights, convention)
			if err != nil {
				t.Fatal(err)
			}
			for q := range 3 {
				r, w := rewards.Data().([]float64)[4*q:4*q+4], weights.Data().([]float64)[4*q:4*q+4]
				want, err := oracle.Normalise(convention, []mgrpo.RewardGroup{{Rewards: r, Weights: w}})
				if err != nil {
					t.Fatal(err)
				}
				for k, a := range want[0].Advantage {
					if b := got.Data().([]float64)[4*q+k]; math.Abs(a-b) > 1e-12 {
						t.Errorf("%s: advantage %d of query %d is %v, want %v", name, k, q, b, a)
					}
				}
				if stats[q].Degenerate != (q == 1) {
					t.Errorf("%s: query %d: %+v", name, q, stats[q])
				}
			}
		}
	}
}

// The backing of a view is a window of the tensor it was cut from, so it must be copied before its address is used.
func TestBatchOfView(t *testing.T) {
	view, err := matrix(2, 3, 1, 9, 0, 0, 9, 1).Slice(nil, tensor.S(0, 3, 2))
	if err != nil {
		t.Fatal(err)
	}
	got, _, err := Batch(view.(*tensor.Dense), nil, mgrpo.DefaultConvention())
	if err != nil || !got.Eq(matrix(2, 2, 1, -1, -1, 1)) {
		t.Errorf("%v: %v", err, got)
	}
}

func TestBatchRefuses(t *testing.T) {
	fine := mgrpo.DefaultConvention()
	for _, c := range []struct {
		name             string
		rewards, weights *tensor.Dense
		convention       mgrpo.Convention
		want             string
	}{
		{"three dimensions", tensor.New(tensor.WithShape(1, 2, 2), tensor.WithBacking([]float64{1, 2, 3, 4})), nil, fine, "want [queries, rollouts] or [rollouts]"},
		{"integers", tensor.New(tensor.WithShape(1, 2), tensor.WithBacking([]int{1, 2})), nil, fine, "want float64 or float32"},
		{"integer weights", matrix(1, 2, 1, 2), tensor.New(tensor.WithShape(1, 2), tensor.WithBacking([]int{1, 2})), fine, "want float64"},
		{"column-major", tensor.New(tensor.WithShape(2, 2), tensor.AsFortran([]float64{1, 2, 3, 4})), nil, fine, "masked or not row-major"},
		{"a mask", tensor.New(tensor.WithShape(2), tensor.WithBacking([]float64{1, 2}, []bool{true, false})), nil, fine, "masked or not row-major"},
		{"another shape of weights", matrix(2, 2, 1, 2, 3, 4), matrix(1, 4, 1, 1, 1, 1), fine, "weights of shape (1, 4) for rewards of shape (2, 2)"},
		{"a convention", matrix(1, 2, 1, 2), nil, mgrpo.Convention{Std: "range"}, "convention.std"},
	} {
		if _, _, err := Batch(c.rewards, c.weights, c.convention); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want ...%s...", c.name, err, c.want)
		}
	}
	_, _, err := Batch(matrix(2, 2, 1, 2, 3, math.NaN()), nil, fine)
	var refusal *mgrpo.Refusal
	if !errors.As(err, &refusal) || refusal.Code != mgrpo.NonFiniteReward || *refusal.Group != 1 || *refusal.Index != 1 {
		t.Errorf("NaN: %v", err)
	}
}

// Arrays that numpy.save wrote are read, and their advantages are written for numpy.load.
func TestNpy(t *testing.T) {
	out := filepath.Join(t.TempDir(), "advantages.npy")
	queries, flat, err := Files("testdata/rewards.npy", "testdata/weights.npy", out, mgrpo.DefaultConvention())
	if err != nil || queries != 3 || flat != 1 {
		t.Fatal(queries, flat, err)
	}
	got, err := readNpy(out)
	if err != nil {
		t.Fatal(err)
	}
	rewards, _ := readNpy("testdata/rewards.npy")
	weights, _ := readNpy("testdata/weights.npy")
	want, _, err := Batch(rewards, weights, mgrpo.DefaultConvention())
	if err != nil || !got.Eq(want) {
		t.Errorf("%v: %v, want %v", err, got, want)
	}
	single, err := readNpy("testdata/single.npy")
	if err != nil || single.Dtype() != tensor.Float32 || !single.Shape().Eq(tensor.Shape{4}) || single.Data().([]float32)[3] != 0.25 {
		t.Errorf("%v, %v", single, err)
	}
}

// Arrays of other types and damaged files are refused before memory of the array's shape is allocated.
func TestNpyRefuses(t *testing.T) {
	whole, err := os.ReadFile("testdata/rewards.npy")
	if err != nil {
		t.Fatal(err)
	}
	text := string(whole)
	for _, c := range []struct{ name, content, want string }{
		{"big-endian", strings.Replace(text, "<f8", ">f8", 1), "needs a vector or a matrix of float64 or float32"},
		{"integers", strings.Replace(text, "<f8", "<i8", 1), "needs a vector or a matrix of float64 or float32"},
		{"Fortran order", strings.Replace(text, "False,", "True, ", 1), "in C order"},
		{"a scalar", strings.Replace(text, "(3, 4)", "()    ", 1), "needs a vector or a matrix"},
		{"three dimensions", strings.Replace(text, "(3, 4), }  ", "(3, 2, 2), }", 1), "needs a vector or a matrix"},
		{"a huge shape", strings.Replace(text, "(3, 4), }           ", "(3000000000, 4), }  ", 1), "does not fit into the file"},
		{"an overflowing shape", strings.Replace(text, "(3, 4), }                    ", "(99999999999999999999, 4), } ", 1), "does not fit into the file"},
		{"an empty array", strings.Replace(text, "(3, 4)", "(0, 4)", 1), "or is empty"},
		{"cut", text[:len(text)-1], "takes 96 bytes, and the file has 95"},
		{"longer", text + "x", "takes 96 bytes, and the file has 97"},
		{"no array", "rewards", "not a NumPy file"},
		{"cut in the header", text[:40], "unexpected EOF"},
	} {
		path := filepath.Join(t.TempDir(), "a.npy")
		if err := os.WriteFile(path, []byte(c.content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := readNpy(path); err == nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), path) {
			t.Errorf("%s: %v, want ...%s...", c.name, err, c.want)
		}
	}
}
