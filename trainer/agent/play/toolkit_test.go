package play

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/agent/dialect"
	"github.com/mgrpo/mgrpo/trainer/agent/hosted"
	"github.com/mgrpo/mgrpo/trainer/agent/openai"
	"github.com/mgrpo/mgrpo/trainer/agent/tool"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/tokenizertest"
	"github.com/mgrpo/mgrpo/trainer/task"
)

// ferries is a user's own task with a tool bound to the query. It makes the tools of a query once.
type ferries struct {
	task.Task
	made map[string][]tool.Tool
}

func newFerries(queries ...task.Query) *ferries {
	f := &ferries{made: map[string][]tool.Tool{}}
	for _, q := range append(queries, task.Query{}) {
		f.made[q.ID] = []tool.Tool{tool.Func("timetable", "Departures of today.", "harbour", "its name",
			func(_ context.Context, harbour string) (string, error) {
				return fmt.Sprintf("%s at %v", harbour, q.Data), nil
			})}
	}
	return f
}

func (f *ferries) Tools(q task.Query, role task.AgentRole) []tool.Tool {
	if role.Main {
		return nil
	}
	return f.made[q.ID]
}

// TestOwnTaskInChat checks that a model with a chat template is offered the tools that a task
// binds to its queries. Calls in a conversation reach the tools of its query.
func TestOwnTaskInChat(t *testing.T) {
	tok := tokenizertest.Golden(t, "qwen3")
	morning, noon := task.Query{ID: "morning", Data: "06:40"}, task.Query{ID: "noon", Data: "12:05"}
	f := newFerries(morning, noon)
	player := func(main bool) *Player {
		p, err := New(Options{Role: task.AgentRole{Agent: "clerk", Main: main}, Task: f, Tokenizer: tok, Tools: &Toolbox{}})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	clerk := player(false)
	stop := tok.StopIDs()[0]
	call := append(tok.Encode(`<tool_call>{"name": "timetable", "arguments": {"harbour": "Lomm"}}</tool_call>`), stop)
	for range 2 {
		for _, q := range []task.Query{morning, noon} {
			clerk.Policy = &said{turns: [][]int32{call, append(tok.Encode("Soon."), stop)}}
			held, err := clerk.Play(t.Context(), Conversation{Query: q, Text: "When?"})
			if err != nil || len(held.Turns) != 4 {
				t.Fatalf("%+v, %v", held.Turns, err)
			}
			if prompt := held.Turns[0].Text; !strings.Contains(prompt, `"name": "timetable"`) || !strings.Contains(prompt, "Departures of today.") {
				t.Errorf("the prompt does not offer the tool:\n%s", prompt)
			}
			if answer := held.Turns[2].Text; !strings.Contains(answer, fmt.Sprintf("Lomm at %v", q.Data)) {
				t.Errorf("%s: the tool answered %q", q.ID, answer)
			}
		}
	}
	if usage, _ := clerk.Usage(); usage["timetable"].Calls != 4 {
		t.Errorf("got usage %+v for 4 calls", usage)
	}
	planner := player(true)
	planner.Policy = &said{turns: [][]int32{append(tok.Encode("?"), stop)}}
	held, err := planner.Play(t.Context(), Conversation{Query: noon, Text: "When?"})
	if err != nil || strings.Contains(held.Turns[0].Text, "timetable") {
		t.Errorf("the planner has no tools: %+v, %v", held.Turns, err)
	}
}

// TestDemonstrationsBeginWithAQuestion: a task's demonstration is the agent's conversation,
// beginning with the question. Other segments are an error.
func TestDemonstrationsBeginWithAQuestion(t *testing.T) {
	question, answer := task.Segment{Role: "user", Text: "?"}, task.Segment{Role: "assistant", Text: "!", Sampled: true}
	p := searcher(t)
	for _, c := range []struct {
		segments []task.Segment
		want     string
	}{
		{[]task.Segment{question, answer}, ""},
		{[]task.Segment{{Role: "system", Text: "Be brief."}, question, answer}, "begins with a segment of the role system"},
		{[]task.Segment{answer}, "begins with a segment of the role assistant"},
		{[]task.Segment{question, {Role: "tool", Text: "r"}, answer}, "a tool result comes before the agent's first turn"},
		{[]task.Segment{question, answer, question, answer}, "segment 3 has the role user"},
		{[]task.Segment{question}, "no turn of the agent"},
		{nil, "no segments"},
	} {
		_, err := p.teach(task.Demonstration{Segments: c.segments})
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%+v: got error %v, want %q", c.segments, err, c.want)
		}
	}
}

// tongue is a task with its own dialect.
type tongue struct{ *ferries }

func (tongue) Name() string { return "tongue" }

func (tongue) Tokenizer() (*tokenizer.Tokenizer, error) { return nil, nil }

func (tongue) Dialect(task.AgentRole, *tokenizer.Tokenizer) (dialect.Dialect, error) { return nil, nil }

// TestHostedModelsSpeakInMessages: a hosted model cannot play a task with its own dialect.
// Tools that a task binds to its queries are offered to it.
func TestHostedModelsSpeakInMessages(t *testing.T) {
	if _, err := New(Options{Task: tongue{newFerries()}, Hosted: &hosted.Model{}, Tools: &Toolbox{}}); err == nil || !strings.Contains(err.Error(), "the task tongue has its own dialect") {
		t.Error(err)
	}
	var offered string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		offered = string(body)
		io.WriteString(w, `{"choices": [{"message": {"content": "Soon."}}]}`)
	}))
	defer server.Close()
	m, err := hosted.Open(openai.Options{URL: server.URL}, "big")
	if err != nil {
		t.Fatal(err)
	}
	p, err := New(Options{Role: task.AgentRole{Agent: "clerk"}, Task: newFerries(), Hosted: m, Tools: &Toolbox{}})
	if err != nil {
		t.Fatal(err)
	}
	held, err := p.Play(t.Context(), Conversation{Text: "When?"})
	if err != nil || held.Answer != "Soon." || !strings.Contains(offered, `"name":"timetable"`) {
		t.Errorf("%+v, %v: asked %s", held, err, offered)
	}
}
