package gateway

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/tokenizertest"
)

// TestReplyIDs: replies to equal questions have different ids if the agents or the rollouts
// differ. A later attempt at the same rollout has the same ids.
func TestReplyIDs(t *testing.T) {
	s := newStage(t, tokenizertest.Golden(t, "smollm2"), func(string) string { return "ok" })
	ask := func(agent string, k Ticket) string {
		_, answer := s.post("/v1/chat/completions", runSecret.Key(k), jsonObject{"model": agent, "messages": []jsonObject{textMessage("user", "?")}})
		return answer["id"].(string)
	}
	other := ticketOf("q", 1)
	other.Rollout = 1
	ids := map[string]bool{}
	for _, k := range []Ticket{ticketOf("q", 1), other, ticketOf("r", 1)} {
		ids[ask("planner", k)], ids[ask("solver", k)] = true, true
	}
	if len(ids) != 6 {
		t.Errorf("six replies have ids %v, want six different ones", ids)
	}
	if !ids[ask("planner", ticketOf("q", 2))] {
		t.Error("a later attempt has different ids")
	}
}

// TestTemplatePrintsEmptyThinking: Qwen3's template prints an empty thinking before a last turn without thinking, and drops it after a new
// message of the user. The turn was sampled without thinking, so the conversation stays one row.
func TestTemplatePrintsEmptyThinking(t *testing.T) {
	tok := tokenizertest.Golden(t, "qwen3")
	s := newStage(t, tok, func(string) string { return "ok" })
	messages := []jsonObject{textMessage("user", "a")}
	for _, next := range []string{"b", "c"} {
		messages = append(messages, s.chat("solver", ticketOf("q", 1), messages, nil), textMessage("user", next))
	}
	s.chat("solver", ticketOf("q", 1), messages, nil)
	if got := s.finish("solver", ticketOf("q", 1)); len(got) != 1 || len(got[0].Rows) != 1 {
		t.Errorf("%+v", got)
	}
}

// TestTokenTexts: log-probs have the text of each token, as in OpenAI's replies, and not its name in the vocabulary.
func TestTokenTexts(t *testing.T) {
	s := newAlone(t, "smollm2")
	s.says = "It is wörd\n now"
	var answer struct {
		Choices []struct{ LogProbs struct{ Tokens []string } }
	}
	if err := json.Unmarshal(s.post("completions", jsonObject{"prompt": "?", "logprobs": 1}).Body.Bytes(), &answer); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(answer.Choices[0].LogProbs.Tokens, ""); !strings.HasPrefix(got, s.says) {
		t.Errorf("the texts of the tokens are %q, want %q", got, s.says)
	}
}
