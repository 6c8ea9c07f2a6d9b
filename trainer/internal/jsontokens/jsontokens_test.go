package jsontokens

import (
	"math"
	"strings"
	"testing"
)

// maker keeps no values.
type maker struct{}

func (maker) Object() (any, func(string, any)) { return nil, func(string, any) {} }
func (maker) Number(text string) (any, error)  { return text, nil }

// TestLimits has a text for each limit that the limit refuses. Without limits it is read.
func TestLimits(t *testing.T) {
	for want, c := range map[string]struct {
		text  string
		limit func(*Reader)
	}{
		"nested deeper than 2 at byte 3": {`[[[]]]`, func(r *Reader) { r.MaxDepth = 2 }},
		"more than 2 values":             {`[1,2]`, func(r *Reader) { r.MaxValues = 2 }},
		"key of 4 bytes before byte 7":   {`{"long":1}`, func(r *Reader) { r.MaxKey = 3 }},
		`key "a" occurs twice`:           {`{"a":1,"a":2}`, func(r *Reader) { r.UniqueKeys = true }},
	} {
		r := New(strings.NewReader(c.text), maker{})
		if _, err := r.Value(); err != nil || r.End() != nil {
			t.Errorf("%s without limits: %v", c.text, err)
		}
		r = New(strings.NewReader(c.text), maker{})
		c.limit(r)
		if _, err := r.Value(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want an error with %q", c.text, err, want)
		}
	}
}

func TestInt(t *testing.T) {
	for text, most := range map[string]int64{"0": 0, "7": 7, "9223372036854775807": math.MaxInt64} {
		if n, err := New(strings.NewReader(text), maker{}).Int(most); err != nil || n != most {
			t.Errorf("%s: got %d, %v", text, n, err)
		}
	}
	for _, text := range []string{"8", "-0", "-1", "1.0", "1e0", `"1"`, "null", "[]", ""} {
		if n, err := New(strings.NewReader(text), maker{}).Int(7); err == nil {
			t.Errorf("%s: got %d, want an error", text, n)
		}
	}
}
