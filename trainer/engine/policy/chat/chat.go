// Package chat implements `mgrpo chat`: a person and a model take turns, and the model's words appear as they are
// sampled.
package chat

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/engine/policy"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer"
)

// Session is one conversation. Every turn renders all messages so far; the engine reuses the prefix that is in its
// key-value cache.
type Session struct {
	Engine    policy.Sampler
	Tokenizer *tokenizer.Tokenizer // with a chat template
	System    string               // system message; "": none, or the template's own
	Sampling  policy.Sampling
	Seed      uint64

	Prompt string // printed before a person's turn, such as "> "; "" if the input is not a terminal
	Out    io.Writer
	Notes  io.Writer // messages about the session, such as a cut answer

	messages []tokenizer.Message
	turn     int64
}

const help = "/reset starts over, /exit or Ctrl-D ends, Ctrl-C cuts an answer short"

// Run reads one message a line from in until the end of in, /exit, or the end of ctx. A value on interrupts stops the
// answer that is being sampled.
func (s *Session) Run(ctx context.Context, in io.Reader, interrupts <-chan os.Signal) error {
	if !s.Tokenizer.HasTemplate() {
		return tokenizer.ErrNoTemplate
	}
	s.reset()
	l := Lines{Prompt: s.Prompt, Out: s.Out, Notes: s.Notes, Help: help}
	return l.Run(ctx, in, interrupts, func(ctx context.Context, line string) (bool, error) { return s.take(ctx, line, interrupts) })
}

// take handles one line from the person.
func (s *Session) take(ctx context.Context, line string, interrupts <-chan os.Signal) (known bool, err error) {
	switch command := strings.TrimSpace(line); {
	case command == "/reset":
		s.reset()
		fmt.Fprintln(s.Notes, "(the conversation starts over)")
		return true, nil
	case strings.HasPrefix(command, "/"):
		return false, nil
	}
	return true, s.answer(ctx, line, interrupts)
}

func (s *Session) reset() {
	s.messages = nil
	if s.System != "" {
		s.messages = []tokenizer.Message{{Role: "system", Content: s.System}}
	}
}

// answer samples the model's turn. If the context does not have enough room for it, the question is also dropped.
func (s *Session) answer(ctx context.Context, question string, interrupts <-chan os.Signal) error {
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
	text, finish, err := s.sample(ctx, tokens, interrupts)
	if err != nil {
		return err
	}
	switch finish {
	case policy.FinishLength:
		fmt.Fprintf(s.Notes, "(cut at %d tokens: --max-new allows more)\n", s.Sampling.MaxNew)
	case policy.FinishContext:
		fmt.Fprintf(s.Notes, "(the context of %d tokens is full: /reset starts over)\n", s.Engine.ContextLimit())
	case policy.FinishCancelled:
		fmt.Fprintln(s.Notes, "(cut short)")
	}
	s.messages = append(asked, tokenizer.Message{Role: "assistant", Content: text})
	return nil
}

// sample prints the turn while the engine samples it.
func (s *Session) sample(ctx context.Context, tokens []int32, interrupts <-chan os.Signal) (string, policy.Finish, error) {
	turn, cut := context.WithCancel(ctx)
	defer cut()
	// Room for the whole turn, so that the engine never waits for the terminal.
	sampled := make(chan int32, min(s.Sampling.MaxNew, s.Engine.ContextLimit()))
	var out policy.Completion
	var err error
	go func() {
		defer close(sampled)
		s.turn++
		out, err = s.Engine.Generate(turn, policy.Request{
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
	for open := true; open; {
		var id int32
		select {
		case id, open = <-sampled:
			if open {
				say(stream.Push(id))
			}
		case <-interrupts:
			cut()
		}
	}
	say(stream.Flush())
	fmt.Fprintln(s.Out)
	if err != nil && turn.Err() != nil && ctx.Err() == nil {
		return text.String(), policy.FinishCancelled, nil
	}
	return text.String(), out.Finish, err
}
