package report

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/mgrpo/mgrpo/trainer/agent"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer"
)

// Limits of a turn; the report cuts longer turns.
const (
	maxTurnRunes  = 6000
	maxTurnTokens = 1500
)

// tokenizers decodes tokens with the tokenizers in the run's checkpoints.
type tokenizers struct {
	dirs   []string
	loaded map[string]*tokenizer.Tokenizer // by agent; nil: no checkpoint contains the agent's tokenizer
}

// tokenizerOf returns an agent's tokenizer from the newest checkpoint that contains one, or nil.
func (s *tokenizers) tokenizerOf(name string) *tokenizer.Tokenizer {
	if t, ok := s.loaded[name]; ok {
		return t
	}
	s.loaded[name] = nil
	for _, dir := range s.dirs {
		steps, err := os.ReadDir(filepath.Join(dir, "checkpoints"))
		if err != nil {
			continue
		}
		for i := len(steps) - 1; i >= 0; i-- { // names have equal length, so the newest is last
			if !strings.HasPrefix(steps[i].Name(), "step-") {
				continue
			}
			t, err := tokenizer.Load(filepath.Join(dir, "checkpoints", steps[i].Name(), name))
			if err == nil {
				s.loaded[name] = t
				return t
			}
		}
	}
	return nil
}

// show converts a trajectory for the report.
func (s *tokenizers) show(l line, agentIndex int) trajectory {
	out := trajectory{
		Agent: agentIndex, Invocation: l.Invocation, Task: clip(l.Task), Reward: l.Reward, Expert: l.Expert,
		Weight: l.Weight, Advantage: l.Advantage, Valid: l.FormatValid, Malformed: l.Malformed, Finish: l.Finish,
		Answer: clip(l.Answer), Calls: l.Calls, Version: l.Version,
	}
	out.Tokens, out.Sampled, _ = l.Size()
	var tok *tokenizer.Tokenizer
	if len(l.Tokens) > 0 { // otherwise the model is hosted
		tok = s.tokenizerOf(l.Agent)
	}
	for _, row := range l.Rows() {
		for _, t := range row.Turns {
			out.Turns = append(out.Turns, showTurn(tok, row, t))
		}
	}
	return out
}

func showTurn(tok *tokenizer.Tokenizer, row *agent.Row, t agent.Turn) turn {
	unknown := func(id int32) bool { return id < 0 || int(id) >= tok.VocabSize() } // an older checkpoint may contain another model
	if t.Sampled && tok != nil && !slices.ContainsFunc(row.Tokens[t.From:t.To], unknown) {
		to := min(t.To, t.From+maxTurnTokens)
		return turn{Role: t.Role, Tokens: tokenTexts(tok, row.Tokens[t.From:to], row.LogProbs[t.From:to]), Cut: t.To - to}
	}
	text := clip(t.Text)
	return turn{Role: t.Role, Text: text, Cut: utf8.RuneCountInString(t.Text) - utf8.RuneCountInString(text)}
}

// tokenTexts returns the text of each token. A character whose bytes span several tokens appears with the last of them.
func tokenTexts(tok *tokenizer.Tokenizer, ids []int32, logProbs []float32) []token {
	out := make([]token, len(ids))
	stream := tok.NewStream(false)
	for i, id := range ids {
		out[i] = token{stream.Push(id), logProbs[i]}
	}
	if n := len(out); n > 0 {
		out[n-1].text += stream.Flush()
	}
	return out
}

func clip(s string) string {
	if utf8.RuneCountInString(s) <= maxTurnRunes {
		return s
	}
	return string([]rune(s)[:maxTurnRunes])
}

// noteSpeakers adds a note for each agent without a tokenizer.
func (r *run) noteSpeakers(s *tokenizers) {
	for _, name := range r.agents {
		if t, asked := s.loaded[name]; asked && t == nil {
			r.lacks("No checkpoint has %s's tokenizer: its trajectories are shown by turns, not by tokens.", name)
		}
	}
}
