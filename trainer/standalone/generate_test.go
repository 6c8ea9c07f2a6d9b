package standalone

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/engine/policy"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer"
)

func generate(t *testing.T, c *Checkpoint, slots, inFlight int, seed uint64, in string) (string, Tally) {
	t.Helper()
	engine, err := c.OpenEngine(context.Background(), slots)
	if err != nil {
		t.Fatal(err)
	}
	opt := GenerateOptions{Sampling: policy.Sampling{Temperature: 1, MaxNew: 9, StopIDs: c.StopIDs()}, Seed: seed, InFlight: inFlight}
	var lines, tokens atomic.Int64
	opt.Progress = func(l, n int) { lines.Add(int64(l)); tokens.Add(int64(n)) }
	var out strings.Builder
	tally, err := c.Generate(context.Background(), engine, opt, strings.NewReader(in), &out)
	if err != nil {
		t.Fatal(err)
	}
	sampled := 0
	for _, r := range replies(t, out.String()) {
		sampled += len(r.IDs)
	}
	if lines.Load() != int64(tally.Lines) || tokens.Load() != int64(sampled) {
		t.Errorf("progress has %d lines and %d tokens, want %d and %d", lines.Load(), tokens.Load(), tally.Lines, sampled)
	}
	return out.String(), tally
}

// TestGenerateInOrder: the bytes of the answers do not depend on the number of lines in flight.
// A bad line does not change the other answers.
func TestGenerateInOrder(t *testing.T) {
	c := openTiny(t, true)
	var in strings.Builder
	for i := range 40 {
		fmt.Fprintf(&in, "{\"id\":%d,\"ids\":[%d,%d,5]}\n", i, i%7, 30+i%3)
	}
	in.WriteString("\n{\"ids\":[1,5,9]}\n{\"ids\":[1,5,9]}\n")
	one, tally := generate(t, c, 1, 1, 3, in.String())
	if tally.Lines != 42 || tally.Failed != 0 {
		t.Fatalf("tally %+v", tally)
	}
	many, _ := generate(t, c, 6, 24, 3, in.String())
	if one != many {
		t.Error("answers differ between 1 and 24 lines in flight")
	}
	for i, r := range replies(t, many) {
		if i < 40 && string(r.ID) != fmt.Sprint(i) || len(r.IDs) == 0 || len(r.LogProbs) != len(r.IDs) || r.Text == nil {
			t.Errorf("got answer %d: %+v", i, r)
		}
		if (r.FinishReason == "stop") != (r.IDs[len(r.IDs)-1] == 2) || r.FinishReason == "length" && len(r.IDs) != 9 {
			t.Errorf("answer %d ends with %q after %v", i, r.FinishReason, r.IDs)
		}
	}
	if other, _ := generate(t, c, 6, 24, 4, in.String()); other == many {
		t.Error("another seed gives the same answers")
	}
	last := strings.Split(strings.TrimSpace(many), "\n")[40:]
	if last[0] == last[1] {
		t.Error("equal prompts on two lines have equal samples")
	}

	lines := strings.SplitAfter(in.String(), "\n")
	lines[3] = "not json\n"
	spoilt, tally := generate(t, c, 6, 24, 3, strings.Join(lines, ""))
	got, want := replies(t, spoilt), replies(t, many)
	if tally.Failed != 1 || !strings.Contains(tally.Err().Error(), "1 of 42 lines failed, the first: line 4: ") || got[3].Error == "" {
		t.Errorf("tally %v, answer %+v", tally.Err(), got[3])
	}
	for i := range got {
		if i != 3 && !slices.Equal(got[i].IDs, want[i].IDs) {
			t.Errorf("answer %d changed with line 4", i)
		}
	}
}

// TestGenerateText: a line with text or messages has the same answer as a line with the ids of
// its tokens. The text of an answer does not have the stop token.
func TestGenerateText(t *testing.T) {
	c := openTiny(t, true)
	for _, line := range []struct{ in, same string }{
		{`{"text":"w7 w8"}`, `{"ids":[7,8]}`},
		{`{"messages":[{"role":"user","content":"w7 w8"}]}`, `{"ids":[3,7,8,4]}`},
		{`{"messages":[{"role":"user","content":"w7 w8"}],"add_generation_prompt":false}`, `{"ids":[3,7,8]}`},
	} {
		got, _ := generate(t, c, 1, 1, 0, line.in)
		want, _ := generate(t, c, 1, 1, 0, line.same)
		if got != want {
			t.Errorf("%s: got %s\nwant %s, the answer to %s", line.in, got, want, line.same)
		}
		r := replies(t, got)[0]
		var words []string
		for _, id := range r.IDs {
			if id != 2 {
				words = append(words, fmt.Sprintf("w%d", id))
			}
		}
		if r.Text == nil || *r.Text != strings.Join(words, " ") {
			t.Errorf("ids %v: got text %v", r.IDs, r.Text)
		}
	}
}

// TestReply: the reply to a chat is the turn that the engine samples after the chat's tokens, with the model's own stop tokens.
func TestReply(t *testing.T) {
	c := openTiny(t, true)
	engine, err := c.OpenEngine(t.Context(), 2)
	if err != nil {
		t.Fatal(err)
	}
	chat := tokenizer.Chat{Messages: tokenizer.Messages(tokenizer.Message{Role: "user", Content: "w7 w8"})}
	for seed := range uint64(8) {
		sampling := policy.Sampling{Temperature: 1, MaxNew: 9}
		text, got, err := c.Reply(t.Context(), engine, chat, sampling, seed)
		if err != nil {
			t.Fatal(err)
		}
		sampling.StopIDs = []int32{2}
		want, err := engine.Generate(t.Context(), policy.Request{Tokens: []int32{3, 7, 8, 4}, Sampling: sampling,
			Key: policy.Key{RunSeed: seed, Query: "reply"}})
		if err != nil || !slices.Equal(got.Tokens, want.Tokens) || got.Finish != want.Finish || strings.Contains(text, "</s>") || len(text) == 0 {
			t.Errorf("seed %d: %q and %+v, want %+v, %v", seed, text, got, want, err)
		}
	}
	if _, _, err := openTiny(t, false).Reply(t.Context(), engine, chat, policy.Sampling{MaxNew: 1}, 0); err == nil || !strings.Contains(err.Error(), "tokenizer") {
		t.Errorf("without a tokenizer: %v", err)
	}
}

func TestGenerateRefusesLines(t *testing.T) {
	c := openTiny(t, true)
	lines := hostile[:len(hostile):len(hostile)]
	lines = append(lines, struct{ line, want string }{`{"messages":[{"role":"user","content":` + strings.Repeat(" ", 3) + `null}]}`, ""},
		struct{ line, want string }{`{"messages":{}}`, `"messages" is of type dict`},
		struct{ line, want string }{`{"ids":[` + strings.Repeat("1,", 5000) + `1]}`, "leaves no room"})
	var in strings.Builder
	for _, l := range lines {
		in.WriteString(l.line + "\n")
	}
	out, tally := generate(t, c, 2, 4, 0, in.String()+`{"ids":[1]}`)
	got := replies(t, out)
	if len(got) != len(lines)+1 || tally.Lines != len(got) {
		t.Fatalf("got %d answers to %d lines, tally %+v", len(got), len(lines)+1, tally)
	}
	for i, l := range lines {
		if l.want != "" && (!strings.HasPrefix(got[i].Error, fmt.Sprintf("line %d: ", i+1)) || !strings.Contains(got[i].Error, l.want)) {
			t.Errorf("%.60s: got answer %+v, want an error with %q", l.line, got[i], l.want)
		}
	}
	if last := got[len(got)-1]; last.Error != "" || len(last.IDs) == 0 {
		t.Errorf("the good line at the end: got answer %+v", last)
	}

	bare := openTiny(t, false)
	out, _ = generate(t, bare, 1, 1, 0, `{"text":"w1"}`+"\n"+`{"ids":[1]}`)
	got = replies(t, out)
	if !strings.Contains(got[0].Error, "does not contain tokenizer.json") || got[1].Error != "" || got[1].Text != nil {
		t.Errorf("without a tokenizer: got %+v", got)
	}
}

// TestLongLine: a line that is too long is refused, and the next line is read.
func TestLongLine(t *testing.T) {
	c := openTiny(t, false)
	in := `{"ids":[1]}` + "\n" + `{"ids":[` + strings.Repeat(" ", maxLine) + `1]}` + "\n" + `{"ids":[1]}`
	out, tally := generate(t, c, 1, 1, 0, in)
	got := replies(t, out)
	if len(got) != 3 || tally.Failed != 1 || !strings.Contains(got[1].Error, "longer than 64 MiB") || got[2].Error != "" {
		t.Errorf("answers %+v", got)
	}
}

// TestGenerateAnswersAtOnce: a program that writes one line and waits for its answer before it writes the next gets the answer.
func TestGenerateAnswersAtOnce(t *testing.T) {
	c := openTiny(t, false)
	engine, err := c.OpenEngine(context.Background(), 4)
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close(context.Background())
	asked, ask := io.Pipe()
	hear, said := io.Pipe()
	done := make(chan error)
	go func() {
		opt := GenerateOptions{Sampling: policy.Sampling{Temperature: 1, MaxNew: 3}, InFlight: 16}
		_, err := c.Generate(context.Background(), engine, opt, asked, said)
		said.Close()
		done <- err
	}()
	answers := bufio.NewReader(hear)
	for range 3 {
		if _, err := io.WriteString(ask, `{"ids":[1,2]}`+"\n"); err != nil {
			t.Fatal(err)
		}
		if line, err := answers.ReadString('\n'); err != nil || !strings.HasPrefix(line, `{"ids":[`) {
			t.Fatalf("answer %q, %v", line, err)
		}
	}
	ask.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// failingWriter is a writer that fails after some bytes, like a pipe whose reader has ended.
type failingWriter struct{ left int }

func (b *failingWriter) Write(p []byte) (int, error) {
	if b.left -= len(p); b.left < 0 {
		return 0, io.ErrClosedPipe
	}
	return len(p), nil
}

// TestGenerateEnds: if the reader of the answers ends or the caller cancels, all requests in flight end.
func TestGenerateEnds(t *testing.T) {
	c := openTiny(t, false)
	engine, err := c.OpenEngine(context.Background(), 4)
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close(context.Background())
	opt := GenerateOptions{Sampling: policy.Sampling{Temperature: 1, MaxNew: 100}, InFlight: 16}
	in := strings.Repeat(`{"ids":[1,2]}`+"\n", 200)
	if _, err := c.Generate(context.Background(), engine, opt, strings.NewReader(in), &failingWriter{3000}); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("a broken pipe: got error %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r, w := io.Pipe()
	defer w.Close()
	go func() {
		w.Write([]byte(in[:28]))
		cancel()
	}()
	if _, err := c.Generate(ctx, engine, opt, r, new(bytes.Buffer)); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled context: got error %v", err)
	}
}

func FuzzParseRequest(f *testing.F) {
	for _, h := range hostile {
		f.Add(h.line)
	}
	f.Add(`{"messages":[{"role":"user","content":"w1"}],"tools":null,"id":[1,{"a":"b"}]}`)
	c := openTiny(f, true)
	f.Fuzz(func(t *testing.T, line string) {
		q, err := parseLine(c, input{number: 1, data: []byte(line)}, true)
		if err == nil && len(q.ids) == 0 {
			t.Error("a request without tokens was accepted")
		}
	})
}
