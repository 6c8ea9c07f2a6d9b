package agent

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/agent/callformat"
	"github.com/mgrpo/mgrpo/trainer/agent/tool"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/tokenizertest"
)

// TestWrittenTurnsAreReadBack: calls and thinking that are written for a template are read
// again unchanged. A template without thinking refuses a turn with thinking.
func TestWrittenTurnsAreReadBack(t *testing.T) {
	eachTokenizer(t, func(t *testing.T, dir string, tok *tokenizer.Tokenizer) {
		c := newTestChat(t, ChatOptions{Tokenizer: tok, Tools: []tool.Tool{echo()}})
		calls := []callformat.Call{{Name: "echo", Arguments: json.RawMessage(`{"text": "a\n<b>"}`)}, {Name: "echo", Arguments: json.RawMessage(`{"text": "b"}`)}}
		text, err := c.Write(WrittenTurn{Text: "Let me see.", Calls: calls})
		if err != nil {
			t.Fatal(err)
		}
		reply := c.template.Reply(tok.Encode(text))
		if len(reply.Calls) != 2 || !sameJSON(reply.Calls[0].Arguments, calls[0].Arguments) || !strings.HasPrefix(reply.Text, "Let me see.") {
			t.Errorf("the written turn %q is read as %+v", text, reply)
		}
		text, err = c.Write(WrittenTurn{Thinking: "Hm.", Text: "Two."})
		if thinks := strings.HasSuffix(dir, "qwen3"); thinks != (err == nil) || thinks && !strings.HasPrefix(text, "<think>\nHm.\n</think>\n\nTwo.") {
			t.Errorf("a turn with thinking: got %q, error %v", text, err)
		} else if !thinks && !strings.Contains(err.Error(), "does not print reasoning_content") {
			t.Error(err)
		}
	})
}

// TestWrittenTurnEndsOpenedThinking: a turn without thinking ends the thinking that the template opens at the beginning of each turn.
func TestWrittenTurnEndsOpenedThinking(t *testing.T) {
	tok := tokenizertest.Golden(t, "qwen3")
	c := newTestChat(t, ChatOptions{Tokenizer: opensThinking{tok}, Tools: []tool.Tool{echo()}})
	if !c.template.thinks.opened {
		t.Fatal("the template does not open a turn's thinking")
	}
	call := callformat.Call{Name: "echo", Arguments: json.RawMessage(`{"text": "a"}`)}
	for _, turn := range []WrittenTurn{{Text: "Two."}, {Calls: []callformat.Call{call}}, {Thinking: "Hm.", Text: "Two."}, {Thinking: "Hm.", Calls: []callformat.Call{call}}} {
		text, err := c.Write(turn)
		if err != nil {
			t.Errorf("%+v: %v", turn, err)
			continue
		}
		reply := c.template.Reply(tok.Encode(text))
		if strings.TrimSpace(reply.Text) != turn.Text || len(reply.Calls) != len(turn.Calls) || reply.Thinking != turn.Thinking || strings.Contains(text, "<think>") {
			t.Errorf("%+v is written as %q and read as %+v", turn, text, reply)
		}
	}
}

// opensThinking is a tokenizer whose template opens the thinking of a turn, like the templates of models that always
// think.
type opensThinking struct{ *tokenizer.Tokenizer }

func (t opensThinking) Render(c tokenizer.Chat) (string, error) {
	text, err := t.Tokenizer.Render(c)
	if c.AddGenerationPrompt {
		text += "<think>\n"
	}
	return text, err
}

// TestWrittenThinkingInText: thinking inside a turn's text, as in data sets of reasoning models, is written between the template's marks.
func TestWrittenThinkingInText(t *testing.T) {
	tok := tokenizertest.Golden(t, "qwen3")
	turn := WrittenTurn{Text: "<think>\nHm.\n</think>\n\nTwo."}
	for name, with := range map[string]struct {
		tokenizer Tokenizer
		want      string
	}{
		"as it is":    {tok, "<think>\nHm.\n</think>\n\nTwo."},
		"opened":      {opensThinking{tok}, "\nHm.\n</think>\n\nTwo."},
		"other marks": {otherMarks{tok}, "[THINK]\nHm.\n[/THINK]\n\nTwo."},
	} {
		c := newTestChat(t, ChatOptions{Tokenizer: with.tokenizer, Tools: []tool.Tool{echo()}})
		text, err := c.Write(turn)
		if err != nil || !strings.HasPrefix(text, with.want) {
			t.Errorf("%s: got %q, error %v", name, text, err)
		}
		if reply := c.template.Reply(tok.Encode(text)); reply.Thinking != "Hm." || strings.TrimSpace(reply.Text) != "Two." {
			t.Errorf("%s: %q is read as %+v", name, text, reply)
		}
	}
}

// otherMarks is a tokenizer whose template prints thinking between other marks.
type otherMarks struct{ *tokenizer.Tokenizer }

func (t otherMarks) Render(c tokenizer.Chat) (string, error) {
	text, err := t.Tokenizer.Render(c)
	return strings.NewReplacer("<think>", "[THINK]", "</think>", "[/THINK]").Replace(text), err
}
