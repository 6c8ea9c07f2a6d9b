package kernels

import (
	"strconv"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/golden"
)

func words(t *testing.T, hex []string) []uint32 {
	t.Helper()
	out := make([]uint32, len(hex))
	for i, h := range hex {
		x, err := strconv.ParseUint(h, 16, 32)
		if err != nil {
			t.Fatal(err)
		}
		out[i] = uint32(x)
	}
	return out
}

func TestGoldenPhilox(t *testing.T) {
	var file struct {
		Blocks []struct{ Counter, Key, Output []string } `json:"blocks"`
		Draws  []struct {
			Key      []string `json:"key"`
			Bound    uint32   `json:"bound"`
			Index    []string `json:"index"`
			Value    []uint32 `json:"value"`
			Attempts []uint32 `json:"attempts"`
		} `json:"draws"`
	}
	golden.Read(t, "mgrpo", "philox.json", &file)
	for i, b := range file.Blocks {
		got := Philox([4]uint32(words(t, b.Counter)), [2]uint32(words(t, b.Key)))
		if want := [4]uint32(words(t, b.Output)); got != want {
			t.Errorf("block %d: %x, want %x", i, got, want)
		}
	}
	for _, d := range file.Draws {
		key := [2]uint32(words(t, d.Key))
		for i, text := range d.Index {
			index, err := strconv.ParseUint(text, 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			if v, n := PhiloxBounded(key, index, d.Bound); v != d.Value[i] || n != d.Attempts[i] {
				t.Errorf("bounded(%d, %d) = %d in %d attempts, want %d in %d", index, d.Bound, v, n, d.Value[i], d.Attempts[i])
			}
		}
	}
	golden.Count("philox", len(file.Blocks)+len(file.Draws))
}
