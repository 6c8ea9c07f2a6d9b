package gateway

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/tokenizertest"
	"golang.org/x/sync/errgroup"
)

// TestCrowd: each of 200 concurrent conversations with two agents gets its own replies, and all conversations are stored.
func TestCrowd(t *testing.T) {
	const crowd, turns = 200, 3
	tok := tokenizertest.Golden(t, "smollm2")
	s := newStage(t, tok, func(prompt string) string { // repeats the word of the last question
		_, word, _ := strings.Cut(prompt[strings.LastIndex(prompt, "Say "):], " ")
		word, _, _ = strings.Cut(word, "<|im_end|>")
		return word
	})
	var arrived atomic.Int64
	all := make(chan struct{})
	for _, m := range s.models {
		m.wait = func(string) { // holds the answers until all requests have arrived
			if arrived.Add(1) == crowd {
				close(all)
			}
			<-all
		}
	}
	name := func(i int) string { return []string{"planner", "solver"}[i%2] }
	ticket := func(i int) Ticket { // two conversations, of different agents, share a rollout
		out := ticketOf(fmt.Sprint("q", i/4), 1)
		out.Rollout = i / 2 % 2
		return out
	}
	word := func(i, turn int) string { return fmt.Sprintf("word-%d-%d", i, turn) }
	var g errgroup.Group
	for i := range crowd {
		g.Go(func() error {
			var messages []jsonObject
			for turn := range turns {
				messages = append(messages, textMessage("user", "Say "+word(i, turn)))
				answer := s.chat(name(i), ticket(i), messages, nil)
				if answer["content"] != word(i, turn) {
					return fmt.Errorf("conversation %d got the reply %v, want %s", i, answer["content"], word(i, turn))
				}
				messages = append(messages, answer)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	for i := range crowd {
		kept := s.finish(name(i), ticket(i))
		if len(kept) != 1 || len(kept[0].Rows) != 1 {
			t.Fatalf("conversation %d is stored as %+v", i, kept)
		}
		var want strings.Builder
		for turn := range turns {
			fmt.Fprintf(&want, "user\nSay %s<|im_end|>\n<|im_start|>assistant\n%s<|im_end|>", word(i, turn), word(i, turn))
			if turn < turns-1 {
				want.WriteString("\n<|im_start|>")
			}
		}
		if text := tok.Decode(kept[0].Rows[0].Tokens, false); !strings.HasSuffix(text, want.String()) {
			t.Errorf("conversation %d:\n%q, want the end\n%q", i, text, want.String())
		}
	}
}
