package grammar

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"
)

// bytesAndStop returns a vocabulary of all bytes, some longer tokens, and one token that ends a reply.
func bytesAndStop(t *testing.T) (v *Vocabulary, tokens [][]byte, stop int32) {
	t.Helper()
	for b := range 256 {
		tokens = append(tokens, []byte{byte(b)})
	}
	tokens = append(tokens, []byte(`{"`), []byte(`": `), []byte("ü"), nil, []byte("</s>"))
	stop = int32(len(tokens) - 1)
	v, err := NewVocabulary(tokens, []int32{stop})
	if err != nil {
		t.Fatal(err)
	}
	return v, tokens, stop
}

// TestGrammar: with random choices among the allowed tokens, a complete reply is JSON of the
// schema, and the token without a text never occurs.
func TestGrammar(t *testing.T) {
	v, tokens, stop := bytesAndStop(t)
	g, err := v.Compile([]byte(`{"type": "structural_tag", "format": {"type": "json_schema", "max_whitespace_cnt": 2, "json_schema":
		{"type": "object", "properties": {"a": {"type": "integer", "maximum": 20}, "b": {"enum": ["x", "ü"]}}, "required": ["a", "b"], "additionalProperties": false}}}`))
	if err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(1, 2))
	mask := make([]int32, Words(len(tokens)))
	for range 50 {
		m, err := g.Matcher()
		if err != nil {
			t.Fatal(err)
		}
		var said strings.Builder
		for id := int32(-1); id != stop; {
			if err := m.Allowed(mask); err != nil {
				t.Fatal(err)
			}
			var may []int32
			for id := range int32(len(tokens)) {
				if mask[id/32]>>(id%32)&1 == 1 {
					may = append(may, id)
				}
			}
			if len(may) == 0 {
				t.Fatalf("nothing may follow %q", said.String())
			}
			id = may[random.IntN(len(may))]
			if len(tokens[id]) == 0 {
				t.Fatal("a token without a text")
			}
			if err := m.Accept(id); err != nil {
				t.Fatal(err)
			}
			if id != stop {
				said.Write(tokens[id])
			}
		}
		var got struct {
			A *int
			B string
		}
		if err := json.Unmarshal([]byte(said.String()), &got); err != nil || got.A == nil || *got.A > 20 || got.B != "x" && got.B != "ü" {
			t.Errorf("%q: %v", said.String(), err)
		}
	}
}

// TestGrammarErrors: what cannot be is an error and not the end of the process.
func TestGrammarErrors(t *testing.T) {
	v, _, stop := bytesAndStop(t)
	for _, tag := range []string{"", "{", `{"type": "structural_tag"}`, `{"type": "structural_tag", "format": {"type": "json_schema", "json_schema": {"type": "nothing"}}}`,
		`{"type": "structural_tag", "format": {"type": "json_schema", "json_schema": {"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 3}]}}}`,
		`{"type": "structural_tag", "format": {"type": "json_schema", "json_schema": {"$ref": "#/$defs/none"}}}`} {
		if _, err := v.Compile([]byte(tag)); err == nil {
			t.Errorf("%s compiles", tag)
		}
	}
	g, err := v.Compile([]byte(`{"type": "structural_tag", "format": {"type": "const_string", "value": "ab"}}`))
	if err != nil {
		t.Fatal(err)
	}
	m, err := g.Matcher()
	if err != nil {
		t.Fatal(err)
	}
	if m.Accept('b') == nil || m.Accept(stop) == nil || m.Accept(-5) == nil || m.Accept(9999) == nil || m.Allowed(make([]int32, 1)) == nil {
		t.Error("it accepts what may not come")
	}
	if err := m.Accept('a'); err != nil {
		t.Error(err)
	}
}
