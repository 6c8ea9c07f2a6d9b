// Package chat implements `mgrpo chat`: a person and a model, or a trained team, take turns.
package chat

import (
	"context"
	"fmt"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/engine/policy"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer"
)

// Session is one conversation with a model, whose words appear as they are sampled. Every turn renders all messages so
// far; the engine reuses the prefix that is in its key-value cache.
type Session struct {
	Terminal
	Engine    policy.Sampler
	Tokenizer *tokenizer.Tokenizer // with a chat template
	System    string               // system message; "": none, or the template's own
	Sampling  policy.Sampling
	Seed      uint64

	messages []tokenizer.Message
	turn     int64
}

const help = "/reset starts over, /exit or Ctrl-D ends, Ctrl-C cuts an answer short"

// Run reads one message a line until the end of the input, /exit, or the end of ctx.
func (s *Session) Run(ctx context.Context) error {
	if !s.Tokenizer.HasTemplate() {
		return tokenizer.ErrNoTemplate
	}
	s.reset()
	return s.run(ctx, help, s.take)
}

// take handles one line from the person.
func (s *Session) take(ctx context.Context, line string) (known bool, err error) {
	switch command := strings.TrimSpace(line); {
	case command == "/reset":
		s.reset()
		fmt.Fprintln(s.Notes, "(the conversation starts over)")
		return true, nil
	case strings.HasPrefix(command, "/"):
		return false, nil
	}
	return true, s.answer(ctx, line)
}

func (s *Session) reset() {
	s.messages = nil
	if s.System != "" {
		s.messages = []tokenizer.Message{{Role: "system", Content: s.System}}
	}
}

// answer samples the model's turn. If the context does not have enough room for it, the question is also dropped.
func (s *Session) answer(ctx context.Context, question string) error {
	asked := append(s.messages[:len(s.messages):len(s.messages)], tokenizer.Message{Role: "user", Content: question})
	prompt, err := s.Tokenizer.Render(tokenizer.Chat{Messages: tokenizer.Messages(asked...), AddGenerationPrompt: true})
	if err != nil {
		return err
	}
	tokens := s.Tokenizer.Encode(prompt)
	if limit := s.Engine.ContextLimit(); len(tokens) >= limit {
		fmt.Fprintf(s.Notes, "(the conversation has %d tokens, and the context is %d: /reset starts over, --context makes it longer)\n", len(tokens), limit)
		return nil
	}
	text, finish, err := s.sample(ctx, tokens)
	switch finish {
	case policy.FinishLength:
		fmt.Fprintf(s.Notes, "(cut at %d tokens: --max-new allows more)\n", s.Sampling.MaxNew)
	case policy.FinishContext:
		fmt.Fprintf(s.Notes, "(the context of %d tokens is full: /reset starts over)\n", s.Engine.ContextLimit())
	}
	s.messages = append(asked, tokenizer.Message{Role: "assistant", Content: text}) // also if it was cut short
	return err
}

// sample prints the turn while the engine samples it.
func (s *Session) sample(ctx context.Context, tokens []int32) (string, policy.Finish, error) {
	// Room for the whole turn, so that the engine never waits for the terminal.
	sampled := make(chan int32, min(s.Sampling.MaxNew, s.Engine.ContextLimit()))
	var out policy.Completion
	var err error
	go func() {
		defer close(sampled)
		s.turn++
		out, err = s.Engine.Generate(ctx, policy.Request{
			Tokens: tokens, Sampling: s.Sampling, Key: policy.Key{RunSeed: s.Seed, Step: s.turn, Query: "chat"},
			OnToken: func(id int32) { sampled <- id },
		})
	}()
	var text strings.Builder
	say := func(piece string) {
		text.WriteString(piece)
		fmt.Fprint(s.Out, piece)
	}
	stream := s.Tokenizer.NewStream(true)
	for id := range sampled {
		say(stream.Push(id))
	}
	say(stream.Flush())
	fmt.Fprintln(s.Out)
	return text.String(), out.Finish, err
}
