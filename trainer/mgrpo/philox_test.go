package mgrpo

import (
	"encoding/hex"
	"slices"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/golden"
	"pgregory.net/rapid"
)

func TestPhiloxGolden(t *testing.T) {
	var f struct {
		Blocks []struct{ Counter, Key, Output words }
		Keys   []struct {
			RunSeed    string `json:"run_seed"`
			Query      string
			Rollout    int
			Agent      string
			MessageHex string `json:"message_hex"`
			Key        words
		}
		Draws []struct {
			Key      words
			Bound    uint32
			Index    []string
			Value    []uint32
			Attempts []int
		}
	}
	golden.Read(t, "mgrpo", "philox.json", &f)
	cases := len(f.Blocks) + len(f.Keys)
	for _, b := range f.Blocks {
		if got := Philox4x32([4]uint32(b.Counter), b.Key.key()); !slices.Equal(got[:], b.Output) {
			t.Errorf("block %x: got %x, want %x", b.Counter, got, b.Output)
		}
	}
	for _, k := range f.Keys {
		seed := parseSeed(t, k.RunSeed)
		if got := hex.EncodeToString(alignMessage(seed, k.Query, k.Rollout, k.Agent)); got != k.MessageHex {
			t.Errorf("message of %q: got %s, want %s", k.Query, got, k.MessageHex)
		}
		if got := AlignKey(seed, k.Query, k.Rollout, k.Agent); got != k.Key.key() {
			t.Errorf("key of %q: got %x, want %x", k.Query, got, k.Key)
		}
	}
	for _, d := range f.Draws {
		for i, index := range d.Index {
			value, attempts := Bounded(d.Key.key(), parseSeed(t, index), d.Bound)
			if value != d.Value[i] || attempts != d.Attempts[i] {
				t.Errorf("draw %s below %d: got %d (%d attempts), want %d (%d)", index, d.Bound, value, attempts, d.Value[i], d.Attempts[i])
			}
			cases++
		}
	}
	golden.Count("mgrpo/philox", cases)
}

// Every field of a key changes it, and so does moving a byte from one field to the next.
func TestSampleKeySeparatesFields(t *testing.T) {
	base := SampleKey(1, 2, "q", 3, "a", 4)
	for name, key := range map[string][2]uint32{
		"seed":    SampleKey(2, 2, "q", 3, "a", 4),
		"step":    SampleKey(1, 3, "q", 3, "a", 4),
		"query":   SampleKey(1, 2, "q#epoch=2", 3, "a", 4),
		"rollout": SampleKey(1, 2, "q", 4, "a", 4),
		"agent":   SampleKey(1, 2, "q", 3, "b", 4),
		"root":    SampleKey(1, 2, "q", 3, "a", 5),
		"domain":  AlignKey(1, "q", 3, "a"),
		"stream":  StreamKey("mgrpo.sample.v1", 1, "q", 3),
	} {
		if key == base {
			t.Errorf("the %s does not enter the key", name)
		}
	}
	if SampleKey(1, 2, "qa", 3, "", 4) == SampleKey(1, 2, "q", 3, "a", 4) {
		t.Error("query and agent are not framed")
	}
}

func TestBoundedStaysInRange(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		key := [2]uint32{rapid.Uint32().Draw(t, "k0"), rapid.Uint32().Draw(t, "k1")}
		bound := rapid.Uint32Min(1).Draw(t, "bound")
		if x, attempts := Bounded(key, rapid.Uint64().Draw(t, "t"), bound); x >= bound || attempts < 1 {
			t.Fatalf("%d of %d after %d attempts", x, bound, attempts)
		}
	})
}
