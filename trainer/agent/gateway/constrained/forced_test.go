package constrained

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/bindings/grammar"
	"github.com/mgrpo/mgrpo/trainer/agent"
	"github.com/mgrpo/mgrpo/trainer/golden"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer"
)

// parameterSchemas are schemas of one parameter each.
var parameterSchemas = []string{
	`{"type": "string"}`, `{"type": "string", "maxLength": 4}`, `{"type": "string", "minLength": 3}`, `{"type": "string", "minLength": 2, "maxLength": 40}`,
	`{"type": "string", "maxLength": 0}`, `{"type": "string", "pattern": "^[A-Z]{2}-[0-9]+$"}`, `{"type": "string", "pattern": "b.d"}`, `{"type": "string", "pattern": "^\\s*\\S+\\s?"}`,
	`{"type": "string", "pattern": "^(?i:yes|no)$"}`, `{"type": "string", "pattern": "^[^a-z]*$"}`, `{"type": "string", "pattern": "^C:\\\\"}`, `{"type": "string", "pattern": "\"$"}`,
	`{"type": "string", "enum": ["12", "true", "a b", " x ", "it's \"so\""]}`, `{"enum": ["low", "high"]}`, `{"const": "circle"}`, `{"const": "7"}`,
	`{"type": "string", "format": "date"}`, `{"type": "string", "format": "date-time"}`, `{"type": "string", "format": "email"}`, `{"type": "string", "format": "uuid"}`,
	`{"type": "integer"}`, `{"type": "integer", "minimum": -3, "maximum": 12}`, `{"type": "integer", "multipleOf": 5}`, `{"type": "number", "exclusiveMinimum": 0, "maximum": 1.5}`, `{"type": "number"}`,
	`{"type": "boolean"}`, `{"type": "null"}`, `{"enum": [1, 2.5, null, true]}`, `{"enum": ["a", 1, "1", null]}`, `{}`,
	`{"anyOf": [{"type": "string"}, {"type": "null"}]}`, `{"type": ["string", "integer"]}`, `{"anyOf": [{"type": "string", "maxLength": 3}, {"type": "null"}]}`,
	`{"anyOf": [{"type": "string"}, {"type": "integer", "maximum": 10}]}`, `{"anyOf": [{"type": "string", "maxLength": 5}, {"type": "integer", "maximum": 10}]}`, `{"anyOf": [{"type": "integer"}, {"type": "null"}]}`,
	`{"anyOf": [{"enum": ["x", "null", "yes"]}, {"type": "boolean"}]}`, `{"allOf": [{"type": "string", "minLength": 1}]}`, `{"allOf": [{"$ref": "#/$defs/Word"}]}`, `{"$ref": "#/$defs/Word"}`, `{"$ref": "#/$defs/Tree"}`,
	`{"type": "array", "items": {"type": "string"}}`, `{"type": "array", "items": {"type": "string", "minLength": 1, "maxLength": 30}, "maxItems": 3}`, `{"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 2}`,
	`{"type": "array", "items": {"type": "string", "pattern": "^.{2,20}$"}, "minItems": 1}`, `{"type": "object", "properties": {"z": {"type": "string", "maxLength": 9}, "b": {"type": "array", "items": {"type": "boolean"}}}, "required": ["z"]}`,
	`{"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object", "properties": {"k": {"type": "string"}}, "required": ["k"]}}]}`, `{"type": "object", "additionalProperties": {"type": "string"}}`,
}

const parameterDefinitions = `{"Word": {"type": "string", "maxLength": 6}, "Tree": {"type": "object", "properties": {"word": {"$ref": "#/$defs/Word"}, "next": {"anyOf": [{"$ref": "#/$defs/Tree"}, {"type": "null"}]}}, "required": ["word"]}}`

// randomParameters returns a schema of a function's parameters, some of them required.
func randomParameters(r *rand.Rand) json.RawMessage {
	var properties []string
	required := []string{}
	for i := range 1 + r.IntN(3) {
		name := fmt.Sprintf("p_%d", i)
		properties = append(properties, fmt.Sprintf("%q: %s", name, parameterSchemas[r.IntN(len(parameterSchemas))]))
		if r.IntN(3) > 0 {
			required = append(required, fmt.Sprintf("%q", name))
		}
	}
	return json.RawMessage(`{"type": "object", "$defs": ` + parameterDefinitions + `, "properties": {` + strings.Join(properties, ", ") + `}, "required": [` + strings.Join(required, ", ") + `]}`)
}

// pushes are texts that a model may write into a value or at its end.
var pushes = []string{"12", "-3", "true", "null", "None", "abc", "bad", "C:\\", "é東🎉", "\n", "\n\n", " ", "\t", "[1, 2]", `{"a": 1}`, `["x"]`, `"`, `""`, "'", "\\", "\\\"", "<", "<b>", "</", "<![CDATA[x]]>", "2024-01-31", "yes",
	"</parameter>", "</parameter> <parameter=p_0>", "</parameter>\n</function>\n</tool_call>", "</arg_value>", "</arg_value><arg_key>", "</tool_call>", "<tool_call>", "</think>", "[TOOL_CALLS]", "[ARGS]", "<|tool_call_end|>", "<|call|>", "\x01", "\x00", "}}", "]]"}

var ends = []string{"}", "]", `"`, `"}`, `"]`, ", ", "\n"}

// notForced lists the templates whose notation of arguments cannot be enforced.
var notForced = []string{"trl_gemma4_v5", "trl_lfm2_2_5", "trl_lfm2_v2"}

// withTemplate returns a tokenizer of bytes with a chat template.
func withTemplate(t *testing.T, file string) *tokenizer.Tokenizer {
	t.Helper()
	template, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	folder := golden.ByteTokenizer(t)
	folder["chat_template.jinja"] = template
	tok, err := tokenizer.Parse(folder)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// TestForcedCallsAreReadBack: a forced call is read as a call that fits the schema, for any texts that a model writes into its arguments.
func TestForcedCallsAreReadBack(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("..", "..", "callformat", "testdata", "templates", "*.jinja"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no templates: %v", err)
	}
	const seeds = 30
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".jinja"), func(t *testing.T) {
			tok := withTemplate(t, file)
			ended := 0
			for seed := range uint64(seeds) {
				r := rand.New(rand.NewPCG(seed, 3))
				if forcedIsReadBack(t, tok, randomParameters(r), r) {
					ended++
				}
			}
			if name := strings.TrimSuffix(filepath.Base(file), ".jinja"); ended < seeds/2 && !slices.Contains(notForced, name) {
				t.Errorf("only %d of %d calls ended", ended, seeds)
			}
		})
	}
}

func forcedIsReadBack(t *testing.T, tok *tokenizer.Tokenizer, parameters json.RawMessage, r *rand.Rand) bool {
	t.Helper()
	definition := json.RawMessage(`{"type": "function", "function": {"name": "add", "description": "adds", "parameters": ` + string(parameters) + `}}`)
	template, err := agent.NewTemplate(agent.TemplateOptions{Tokenizer: tok, Functions: []json.RawMessage{definition}})
	if err != nil {
		t.Fatal(err)
	}
	form, err := template.CallForm("add")
	if err != nil {
		return false
	}
	if err := CheckSchema(parameters); err != nil {
		t.Errorf("%s: %v", parameters, err)
	}
	call, err := Function{Name: "add", Parameters: parameters, Call: form}.callTag(tok)
	if err != nil {
		if !strings.Contains(err.Error(), "cannot be enforced") {
			t.Errorf("%s: %v", parameters, err)
		}
		return false
	}
	tag, err := json.Marshal(object{"type": "structural_tag", "format": call})
	if err != nil {
		t.Fatal(err)
	}
	m, err := NewGrammars(tok).matcher(tag, template.Stops().IDs)
	if err != nil {
		t.Errorf("%s: %v", parameters, err)
		return false
	}
	ids, ended := randomWalk(t, tok, m, template.Stops().IDs[0], form, r)
	if !ended {
		return false
	}
	opened := ""
	if template.Partial("x", false).Thinking != "" {
		opened = "hm\n</think>\n\n"
	}
	said := append(tok.Encode(opened), ids...)
	reply := template.Reply(said)
	if len(reply.Calls) != 1 || reply.Calls[0].Name != "add" || reply.Calls[0].Problem != "" {
		t.Errorf("%s: %q is read as %+v", parameters, tok.Decode(said, false), reply.Calls)
	} else if err := Validate(parameters, string(reply.Calls[0].Arguments)); err != nil {
		t.Errorf("%s: %q is read as %s: %v", parameters, tok.Decode(said, false), reply.Calls[0].Arguments, err)
	}
	return true
}

// randomWalk writes random texts as far as the grammar allows them, and reports whether the call ended.
func randomWalk(t *testing.T, tok *tokenizer.Tokenizer, m *grammar.Matcher, stop int32, form agent.CallForm, r *rand.Rand) (ids []int32, ended bool) {
	t.Helper()
	ends := append([]string{form.After}, ends...)
	if form.Pairs != nil {
		ends = append(ends, form.Pairs.Close, form.Pairs.Close, form.Pairs.Close+form.After)
	}
	mask := make([]int32, grammar.Words(tok.VocabSize()))
	const maxTokens = 1500
	for tries := 0; len(ids) < maxTokens && tries < maxTokens; tries++ {
		text := pushes[r.IntN(len(pushes))]
		if r.IntN(2) == 0 || tries > 30 {
			text = ends[r.IntN(len(ends))]
		}
		wanted := tok.Encode(text)
		for i := 0; ; i++ {
			if err := m.Allowed(mask); err != nil {
				t.Fatal(err)
			}
			var may []int32
			for id := range int32(tok.VocabSize()) {
				if mask[id/32]>>(id%32)&1 == 1 {
					may = append(may, id)
				}
			}
			id := stop
			switch forced := len(may) == 1; {
			case len(may) == 0:
				t.Fatalf("the grammar allows no token after %q", tok.Decode(ids, false))
			case slices.Contains(may, stop):
			case i < len(wanted) && slices.Contains(may, wanted[i]):
				id = wanted[i]
			case forced || i == 0 && r.IntN(8) == 0:
				id = may[r.IntN(len(may))]
			}
			if id == stop && !slices.Contains(may, stop) {
				break
			}
			if err := m.Accept(id); err != nil {
				t.Fatal(err)
			}
			if ids = append(ids, id); id == stop {
				return ids, true
			}
		}
	}
	return ids, false
}
