package agent

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/model/tokenizer"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/ordered"
)

// TestCallFormIsThatOfTheTemplate: the texts around a call's name and arguments occur in a history that the template prints.
func TestCallFormIsThatOfTheTemplate(t *testing.T) {
	definition, err := ordered.Parse(weather)
	if err != nil {
		t.Fatal(err)
	}
	eachTemplate(t, func(t *testing.T, tok *tokenizer.Tokenizer) {
		template, err := NewTemplate(TemplateOptions{Tokenizer: tok, Functions: []json.RawMessage{weather}})
		mustWork(t, err)
		form, err := template.CallForm("get_weather")
		mustWork(t, err, "trl_gemma4_v5", "trl_lfm2_2_5", "trl_lfm2_v2") // their arguments are no JSON
		if form.Pairs != nil || !template.history.calls {
			return
		}
		call := tokenizer.ToolCall{ID: "call01000", Name: "get_weather", Arguments: ordered.NewObject("city", "Oslo")}
		printed, err := tok.Render(tokenizer.Chat{Messages: tokenizer.Messages(tokenizer.Message{Role: "user", Content: "weather?"}, tokenizer.Message{Role: "assistant", ToolCalls: []tokenizer.ToolCall{call}}), Tools: []any{definition}})
		if err != nil {
			t.Fatal(err)
		}
		_, rest, found := strings.Cut(printed, form.Before)
		arguments, _, _ := strings.Cut(rest, "}")
		if !found || !strings.HasPrefix(rest, arguments+"}"+strings.TrimRight(form.After, "\n")) || !json.Valid([]byte(arguments+"}")) {
			t.Errorf("got form %+v, which is not in the printed history %q", form, printed)
		}
	})
}
