package mgrpo

import (
	"encoding/json"
	"strconv"
	"testing"
)

func parseSeed(t *testing.T, s string) uint64 {
	t.Helper()
	x, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

type words []uint32

func (w *words) UnmarshalJSON(b []byte) error {
	var hex []string
	if err := json.Unmarshal(b, &hex); err != nil {
		return err
	}
	*w = nil
	for _, h := range hex {
		x, err := strconv.ParseUint(h, 16, 32)
		if err != nil {
			return err
		}
		*w = append(*w, uint32(x))
	}
	return nil
}

func (w words) key() [2]uint32 { return [2]uint32(w) }
