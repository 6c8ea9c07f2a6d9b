package chat

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"unicode/utf8"

	"go.uber.org/goleak"

	"github.com/mgrpo/mgrpo/trainer/engine/policy"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/tokenizertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// script is an engine that answers with prepared turns and records its requests.
type script struct {
	answers [][]int32
	asked   []policy.Request
	context int
	hang    chan struct{} // if set, Generate sends on it after the last token and then waits until it is cancelled
}

func (e *script) ContextLimit() int { return e.context }
func (e *script) Version() int64    { return 0 }

func (e *script) Generate(ctx context.Context, r policy.Request) (policy.Completion, error) {
	answer := e.answers[len(e.asked)]
	e.asked = append(e.asked, r)
	c := policy.Completion{Tokens: answer, Finish: policy.FinishStop}
	for i, id := range answer {
		if i == r.Sampling.MaxNew {
			c.Tokens, c.Finish = answer[:i], policy.FinishLength
			break
		}
		r.OnToken(id)
	}
	if e.hang != nil {
		e.hang <- struct{}{}
		<-ctx.Done()
		return policy.Completion{Finish: policy.FinishCancelled}, ctx.Err()
	}
	return c, nil
}

// terminal is an output that checks that no write splits a character.
type terminal struct {
	t      *testing.T
	text   bytes.Buffer
	writes int
}

func (w *terminal) Write(p []byte) (int, error) {
	if !utf8.Valid(p) {
		w.t.Errorf("the write %q splits a character", p)
	}
	w.writes++
	return w.text.Write(p)
}

// converse runs a whole conversation.
func converse(t *testing.T, e *script, s *Session, in io.Reader, interrupts <-chan os.Signal) (said, notes string, err error) {
	t.Helper()
	out, beside := &terminal{t: t}, &strings.Builder{}
	s.Engine, s.In, s.Interrupts, s.Out, s.Notes = e, in, interrupts, out, beside
	if s.Tokenizer == nil {
		s.Tokenizer = tokenizertest.Golden(t, "smollm2")
	}
	if s.Sampling.MaxNew == 0 {
		s.Sampling.MaxNew = 100
	}
	if e.context == 0 {
		e.context = 1000
	}
	err = s.Run(context.Background())
	return out.text.String(), beside.String(), err
}

// TestStreamsWholeCharacters: an answer is written token by token, and no write splits a character.
func TestStreamsWholeCharacters(t *testing.T) {
	tok := tokenizertest.Golden(t, "smollm2")
	answer := "naïve 日本語 🦙🏽 ok"
	ids := tok.Encode(answer + "<|im_end|>")
	out := &terminal{t: t}
	s := Session{Engine: &script{answers: [][]int32{ids, ids[:len(ids)-5]}, context: 1000}, Tokenizer: tok, Sampling: policy.Sampling{MaxNew: 100},
		Terminal: Terminal{In: strings.NewReader("hi\n"), Out: out, Notes: io.Discard}}
	if err := s.Run(context.Background()); err != nil {
		t.Fatal(err)
	}
	if got := out.text.String(); got != answer+"\n" {
		t.Errorf("got output %q, want %q", got, answer)
	}
	if out.writes < 5 {
		t.Errorf("got %d writes, want at least 5, because tokens are written one by one", out.writes)
	}
}

// TestHistory: each prompt has the system message and all turns since the last /reset.
func TestHistory(t *testing.T) {
	tok := tokenizertest.Golden(t, "smollm2")
	e := &script{answers: [][]int32{tok.Encode("Hello!<|im_end|>"), tok.Encode("Fine."), tok.Encode("Who?")}}
	said, notes, err := converse(t, e, &Session{Tokenizer: tok, System: "Be brief.", Terminal: Terminal{Prompt: "> "}, Seed: 5},
		strings.NewReader("Hi\n\nHow are you?\n/reset\nDo you know me?\n/what\n/exit\nnever read\n"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if want := "> Hello!\n> > Fine.\n> > Who?\n> > "; said != want {
		t.Errorf("got output %q, want %q", said, want)
	}
	if !strings.Contains(notes, "starts over") || !strings.Contains(notes, "there is no /what") {
		t.Errorf("got notes %q, want one about /reset and one about /what", notes)
	}
	system, open := "<|im_start|>system\nBe brief.<|im_end|>\n", "<|im_start|>assistant\n"
	user := func(s string) string { return "<|im_start|>user\n" + s + "<|im_end|>\n" }
	for i, want := range []string{
		system + user("Hi") + open,
		system + user("Hi") + open + "Hello!<|im_end|>\n" + user("How are you?") + open,
		system + user("Do you know me?") + open,
	} {
		if got := tok.Decode(e.asked[i].Tokens, false); got != want {
			t.Errorf("turn %d: got prompt %q, want %q", i+1, got, want)
		}
	}
	if a, b := e.asked[0].Key, e.asked[2].Key; a == b || a.RunSeed != 5 {
		t.Errorf("got keys %+v and %+v, want different ones with run seed 5", a, b)
	}
}

// TestInterrupt: an interrupt ends the answer, and the conversation continues with the part of the answer that was printed.
func TestInterrupt(t *testing.T) {
	tok := tokenizertest.Golden(t, "smollm2")
	e := &script{answers: [][]int32{tok.Encode("Once upon"), tok.Encode("a time")}, hang: make(chan struct{})}
	interrupts := make(chan os.Signal)
	in, person := io.Pipe()
	go func() {
		interrupts <- os.Interrupt // at the prompt, where it prints a hint
		for _, line := range []string{"Tell me a story", "Go on"} {
			fmt.Fprintln(person, line)
			<-e.hang
			interrupts <- os.Interrupt
		}
		person.Close()
	}()
	said, notes, err := converse(t, e, &Session{Tokenizer: tok}, in, interrupts)
	if err != nil {
		t.Fatal(err)
	}
	if len(e.asked) != 2 || strings.Count(notes, "cut short)") != 2 || !strings.Contains(notes, "/exit") {
		t.Errorf("got output %q and notes %q, want two answers cut short and a hint", said, notes)
	}
	// The interrupt may arrive before the first word, so the printed part may be empty.
	first, _, _ := strings.Cut(said, "\n")
	if again := tok.Decode(e.asked[1].Tokens, false); !strings.Contains(again, "assistant\n"+first+"<|im_end|>") {
		t.Errorf("the printed answer %q is not in the next prompt %q", first, again)
	}
}

func TestLimits(t *testing.T) {
	tok := tokenizertest.Golden(t, "smollm2")
	e := &script{answers: [][]int32{tok.Encode("one two three four")}, context: 40}
	_, notes, err := converse(t, e, &Session{Tokenizer: tok, System: "S", Sampling: policy.Sampling{MaxNew: 2}},
		strings.NewReader("Count\n"+strings.Repeat("word ", 100)+"\n"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(e.asked) != 1 || !strings.Contains(notes, "cut at 2 tokens: --max-new") || !strings.Contains(notes, "the context is 40") {
		t.Errorf("got %d turns and notes %q, want 1 and notes about both limits", len(e.asked), notes)
	}
	if _, _, err := converse(t, e, &Session{Tokenizer: tok}, strings.NewReader(strings.Repeat("x", maxMessage+1)), nil); err == nil || !strings.Contains(err.Error(), "longer than 1 MiB") {
		t.Errorf("a message that is too long: got error %v", err)
	}
	bare, err := tokenizer.WordLevel{Vocab: []string{"a"}, Unk: "a"}.Files()
	if err != nil {
		t.Fatal(err)
	}
	none, err := tokenizer.Parse(bare)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := converse(t, e, &Session{Tokenizer: none}, strings.NewReader(""), nil); err != tokenizer.ErrNoTemplate {
		t.Errorf("without a template: got error %v, want %v", err, tokenizer.ErrNoTemplate)
	}
}
