package ordered

import (
	"bytes"
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/internal/jsontokens"
)

// Limits on JSON.
const (
	MaxDepth  = 512     // nesting of arrays and objects
	MaxDigits = 4300    // digits of an integer, Python's limit
	MaxValues = 1 << 22 // values in total
)

// Parse parses one JSON value. As in Python, the last of equal keys wins, at the place of the first. Unpaired surrogates
// and bytes that are not UTF-8 become U+FFFD.
func Parse(data []byte) (any, error) {
	r := jsontokens.New(bytes.NewReader(data), Maker{})
	r.MaxDepth, r.MaxValues = MaxDepth, MaxValues
	v, err := r.Value()
	if err != nil {
		return nil, err
	}
	return v, r.End()
}

// Maker makes the values of a reader of JSON.
type Maker struct{}

// Object returns an *Object and its Set.
func (Maker) Object() (object any, set func(key string, value any)) {
	o := &Object{}
	return o, o.Set
}

// Number returns an int64, a *big.Int or a float64.
func (Maker) Number(s string) (any, error) {
	if strings.ContainsAny(s, ".eE") {
		f, err := strconv.ParseFloat(s, 64)
		if err != nil && !math.IsInf(f, 0) {
			return nil, fmt.Errorf("json: number %.40q: %w", s, err)
		}
		return f, nil
	}
	if n, err := strconv.ParseInt(s, 10, 64); err == nil {
		return n, nil
	}
	if len(s) > MaxDigits {
		return nil, fmt.Errorf("json: an integer of %d digits; at most %d are allowed", len(s), MaxDigits)
	}
	n, ok := new(big.Int).SetString(s, 10)
	if !ok {
		return nil, fmt.Errorf("json: number %.40q", s)
	}
	return n, nil
}
