package arch

import (
	"reflect"
	"strings"
	"testing"
)

const moduleConfig = `{"model_type": "torchscript", "vocab_size": 5, "hidden_size": 3, "max_position_embeddings": 16, "head": "out",
	"parameters": {"out": [5, 3], "a.bias": [3], "conv": [2, 3, 4]}, "eos_token_id": 4, "note": "kept"}`

// The leaves of a module are its parameters by name, and a written config.json describes the same module.
func TestModule(t *testing.T) {
	c, err := ParseJSON([]byte(moduleConfig))
	if err != nil {
		t.Fatal(err)
	}
	l := c.Layout()
	var names []string
	for _, leaf := range l.Leaves {
		names = append(names, leaf.Name)
	}
	if want := []string{"a.bias", "conv", "out"}; !reflect.DeepEqual(names, want) || l.Numel != 3+24+15 || l.Leaves[2].Offset != 27 {
		t.Errorf("leaves %v of %d values, the last at %d", names, l.Numel, l.Leaves[2].Offset)
	}
	written, err := c.JSON("float32")
	if err != nil {
		t.Fatal(err)
	}
	again, err := ParseJSON(written)
	if err != nil {
		t.Fatal(err)
	}
	again.Raw, c.Raw = nil, nil
	if !reflect.DeepEqual(again, c) || !strings.Contains(string(written), `"note": "kept"`) {
		t.Errorf("%s", written)
	}
}

func TestModuleRefused(t *testing.T) {
	for from, c := range map[string]struct{ to, want string }{
		`"vocab_size": 5`:    {`"vocab_size": 0`, "vocab_size is 0"},
		`"hidden_size": 3, `: {"", "hidden_size is missing"},
		`"head": "out"`:      {`"head": "conv"`, `head "conv" must name one of parameters whose shape is [vocab_size, hidden_size], [5, 3]`},
		`[5, 3]`:             {`[3, 5]`, `head "out"`},
		`[2, 3, 4]`:          {`[2, -3, 4]`, "every size must be positive"},
		`"conv": [2, 3, 4]`:  {`"conv": [2147483647, 2147483647, 4]`, "more than 2^40 values up to conv"},
		`"a.bias": [3]`:      {`"a.bias": []`, "has 0 dimensions"},
		`"a.bias": `:         {`"": `, "a name of 0 bytes"},
		`{"out"`:             {`["out"], "x": {"out"`, "parameters must be an object"},
		`[3]`:                {`"3"`, "must be a list of integers"},
		`"eos_token_id": 4`:  {`"eos_token_id": 5`, "outside the vocabulary of 5"},
	} {
		if _, err := ParseJSON([]byte(strings.Replace(moduleConfig, from, c.to, 1))); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s in place of %s: %v; want %q", c.to, from, err, c.want)
		}
	}
}
