package agent

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/golden"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/ordered"
)

var weather = json.RawMessage(`{"type":"function","function":{"name":"get_weather","description":"weather","parameters":{"type":"object","properties":{"city":{"type":"string","description":"c"},"days":{"type":"integer","description":"d"}},"required":["city"]}}}`)

// mustWork fails the test of a template because of an error. If the template is among those that cannot do it, the error is expected.
func mustWork(t *testing.T, err error, cannot ...string) {
	t.Helper()
	known := slices.Contains(cannot, strings.TrimSuffix(filepath.Base(t.Name()), ".jinja"))
	switch {
	case err != nil && (known || os.Getenv("TEMPLATES") != ""):
		t.Skip(err)
	case err != nil:
		t.Fatal(err)
	case known:
		t.Error("the template can do it now: remove it from the list")
	}
}

// eachTemplate calls f with a tokenizer of bytes and each chat template of the corpus.
func eachTemplate(t *testing.T, f func(t *testing.T, tok *tokenizer.Tokenizer)) {
	files, err := filepath.Glob(filepath.Join("callformat", "testdata", "templates", "*.jinja"))
	if more := os.Getenv("TEMPLATES"); more != "" {
		found, _ := filepath.Glob(filepath.Join(more, "*", "*.jinja"))
		files = append(files, found...)
	}
	if err != nil || len(files) == 0 {
		t.Fatalf("no templates: %v", err)
	}
	small := golden.ByteTokenizer(t)
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			folder := maps.Clone(small)
			if folder["chat_template.jinja"], err = os.ReadFile(file); err != nil {
				t.Fatal(err)
			}
			tok, err := tokenizer.Parse(folder)
			mustWork(t, err)
			f(t, tok)
		})
	}
}

// TestResultsAreThoseOfTheTemplate: a history with a call and its result is printed as the
// template prints it. The text appended to a sampled call is the end of this history.
func TestResultsAreThoseOfTheTemplate(t *testing.T) {
	definition, err := ordered.Parse(weather)
	if err != nil {
		t.Fatal(err)
	}
	eachTemplate(t, func(t *testing.T, tok *tokenizer.Tokenizer) {
		template, err := NewTemplate(TemplateOptions{Tokenizer: tok, Functions: []json.RawMessage{weather}})
		mustWork(t, err)
		user := tokenizer.Message{Role: "user", Content: "weather?"}
		call := tokenizer.ToolCall{ID: "abcdef123", Name: "get_weather", Arguments: ordered.NewObject("city", "Oslo")}
		if template.history.asText {
			call.Arguments = `{"city": "Oslo"}`
		}
		result := tokenizer.Message{Role: "tool", Name: "get_weather", ToolCallID: "abcdef123", Content: "SUNNY"}
		messages := []tokenizer.Message{user, {Role: "assistant", ToolCalls: []tokenizer.ToolCall{call}}, result}
		native, err := tok.Render(tokenizer.Chat{Messages: tokenizer.Messages(messages...), Tools: []any{definition}, AddGenerationPrompt: true})
		if err != nil || !strings.Contains(native, "SUNNY") || !strings.Contains(native, "Oslo") {
			t.Skip("the template prints no results")
		}
		_, got, err := template.Prompt(messages)
		if err != nil {
			t.Fatal(err)
		}
		if template.describes() {
			_, got, _ = strings.Cut(got, "weather?")
			_, native, _ = strings.Cut(native, "weather?")
		}
		if got != native {
			t.Errorf("got history %q, want %q", got, native)
		}
		turn, err := tok.Render(tokenizer.Chat{Messages: tokenizer.Messages(messages[:2]...), Tools: []any{definition}})
		if err != nil {
			t.Fatal(err)
		}
		_, observed, err := template.Observe(tok.Encode(turn), []tokenizer.Message{result})
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(native, observed) || !strings.Contains(observed, "SUNNY") || strings.Contains(observed, "Oslo") {
			t.Errorf("got %q appended to the call, want the end of %q", observed, native)
		}
	})
}

// TestCallsInHistories: histories with clients' ids, with several calls in a message and without ids are printed also for templates that
// refuse them.
func TestCallsInHistories(t *testing.T) {
	eachTemplate(t, func(t *testing.T, tok *tokenizer.Tokenizer) {
		template, err := NewTemplate(TemplateOptions{Tokenizer: tok, Functions: []json.RawMessage{weather}})
		mustWork(t, err)
		call := func(id, city string) tokenizer.ToolCall {
			return tokenizer.ToolCall{ID: id, Name: "get_weather", Arguments: ordered.NewObject("city", city)}
		}
		_, text, err := template.Prompt([]tokenizer.Message{{Role: "user", Content: "weather?"},
			{Role: "assistant", ToolCalls: []tokenizer.ToolCall{call("call_0123456789abcdef", "Oslo"), call("call_fedcba9876543210", "Rome")}},
			{Role: "tool", ToolCallID: "call_0123456789abcdef", Content: "SUNNY"}, {Role: "tool", Content: "RAINY"}})
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"Oslo", "Rome", "SUNNY", "RAINY"} {
			if !strings.Contains(text, want) {
				t.Errorf("got %q, want %s in it", text, want)
			}
		}
	})
}

// TestFunctionsWithoutSystemRole: if the template refuses system messages, as Gemma 2's does,
// or leaves them out, functions are described in the user's first message.
func TestFunctionsWithoutSystemRole(t *testing.T) {
	for _, system := range []string{"{{ raise_exception('System role not supported') }}", ""} {
		folder := golden.ByteTokenizer(t)
		folder["chat_template.jinja"] = []byte("{% for m in messages %}{% if m.role == 'system' %}" + system + "{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
		tok, err := tokenizer.Parse(folder)
		if err != nil {
			t.Fatal(err)
		}
		template, err := NewTemplate(TemplateOptions{Tokenizer: tok, Functions: []json.RawMessage{weather}})
		if err != nil {
			t.Fatal(err)
		}
		_, text, err := template.Prompt([]tokenizer.Message{{Role: "user", Content: "weather?"}})
		if _, after, found := strings.Cut(text, "get_weather"); err != nil || !found || !strings.Contains(after, "weather?") || strings.Count(text, "<|im_start|>") != 2 {
			t.Errorf("%q: %q, %v", system, text, err)
		}
	}
}
