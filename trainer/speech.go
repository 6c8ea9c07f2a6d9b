package trainer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/agent"
	"github.com/mgrpo/mgrpo/trainer/agent/compact"
	"github.com/mgrpo/mgrpo/trainer/agent/tool"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/learner"
	"github.com/mgrpo/mgrpo/trainer/task"
	"github.com/mgrpo/mgrpo/trainer/task/research"
	"github.com/mgrpo/mgrpo/trainer/tokenizer"
)

// shapeTokenizer is the tokenizer of a model that has none of its own yet.
func shapeTokenizer(cfg *config.Config, s *config.Shape) (*tokenizer.Tokenizer, error) {
	if s.Tokenizer != "task" {
		return tokenizer.Load(cfg.Resolve(s.Tokenizer))
	}
	if cfg.Task.Kind != "research" {
		return nil, fmt.Errorf("shape.tokenizer is task, but the task %s has no vocabulary of its own: name a folder with a tokenizer.json", cfg.Task.Kind)
	}
	words := research.Vocabulary()
	files, err := tokenizer.WordLevel{Vocab: words, Unk: words[0], Pad: words[0]}.Files()
	if err != nil {
		return nil, err
	}
	return tokenizer.Parse(files)
}

// speak gives the agent its tools and its dialect.
func (w *Worker) speak(ctx context.Context) (err error) {
	if w.speaksCompact() {
		w.tools = &toolbox{} // the task brings its own
		role, colleague := w.role(), ""
		if role == research.Planner {
			colleague = w.agent.Delegates[0]
		}
		w.dialect = func() (agent.Dialect, error) { return compact.New(role, w.tokenizer, colleague) }
		_, err := w.dialect()
		return err
	}
	if w.tools, err = openTools(ctx, w.cfg, w.agent.Tools); err != nil {
		return err
	}
	chat, err := w.chat()
	if err != nil {
		return err
	}
	w.dialect = func() (agent.Dialect, error) { return chat, nil }
	return nil
}

// speaksCompact: the research task has a grammar of its own, other tasks are chats.
func (w *Worker) speaksCompact() bool { return w.cfg.Task.Kind == "research" }

// role is the part in the research task's grammar.
func (w *Worker) role() research.Role {
	switch {
	case !w.main:
		return research.Researcher
	case w.cfg.Run.Arm == "single":
		return research.Single
	}
	return research.Planner
}

func (w *Worker) chat() (*agent.Chat, error) {
	system := w.agent.PromptText
	if w.agent.Prompt != "" {
		text, err := os.ReadFile(w.cfg.Resolve(w.agent.Prompt))
		if err != nil {
			return nil, fmt.Errorf("agents.%s.prompt: %w", w.name, err)
		}
		system = string(text)
	}
	c := agent.ChatConfig{Tokenizer: w.tokenizer, System: system, Tools: w.tools.all}
	if w.main {
		for _, sub := range w.cfg.Subs() {
			if slices.Contains(w.agent.Delegates, sub.Name) {
				c.Colleagues = append(c.Colleagues, agent.Colleague{Name: sub.Name, Description: describe(sub)})
			}
		}
	}
	return agent.NewChat(c)
}

func describe(sub *config.Agent) string {
	switch {
	case sub.Describe != "":
		return sub.Describe
	case len(sub.Tools) > 0:
		return fmt.Sprintf("Another agent, with the tools %s.", strings.Join(sub.Tools, ", "))
	}
	return "Another agent, without tools."
}

// toolsFor adds the tools that the task binds to a query.
func (w *Worker) toolsFor(q task.Query) map[string]tool.Tool {
	env, ok := w.task.(task.Environment)
	if !ok || !w.speaksCompact() {
		return w.tools.byName
	}
	search := tool.Func(research.SearchTool, "Search the knowledge base of the question.", compact.QueryArgument, "names or relations",
		func(ctx context.Context, words string) (string, error) {
			return env.Tool(ctx, q, research.SearchTool, words)
		})
	return map[string]tool.Tool{search.Name(): search}
}

// demonstrations are the cold start's conversations as sequences to learn.
func (w *Worker) demonstrations() ([]*learner.Sequence, error) {
	source, ok := w.task.(task.Demonstrator)
	file := &chats{path: w.cfg.Resolve(w.cfg.ColdStart.Demonstrations)}
	if w.cfg.ColdStart.Demonstrations != "task" {
		source, ok = file, true
	}
	if !ok {
		return nil, fmt.Errorf("the task %s has no demonstrations: name a JSONL file of chats in cold_start.demonstrations", w.task.Name())
	}
	part := w.name
	if w.speaksCompact() {
		part = string(w.role())
	}
	var out []*learner.Sequence
	for d := range source.Demonstrations(part, w.cfg.ColdStart.Queries) {
		q, err := w.teach(d)
		if err != nil {
			return nil, fmt.Errorf("demonstration %d: %w", len(out)+1, err)
		}
		q.ID = fmt.Sprintf("demonstration-%06d", len(out))
		if len(q.Tokens) <= contextOf(w.agent, w.model.MaxPosition()) {
			out = append(out, q)
		}
	}
	return out, file.err
}

// teach turns a demonstration into tokens exactly as a conversation would have: the dialect's prompt, the
// agent's own turns with their stop token, the dialect's observations between them.
func (w *Worker) teach(d task.Demonstration) (*learner.Sequence, error) {
	dialect, err := w.dialect()
	if err != nil {
		return nil, err
	}
	q := &learner.Sequence{}
	add := func(ids []int32, sampled bool) {
		q.Tokens = append(q.Tokens, ids...)
		q.Sampled = append(q.Sampled, slices.Repeat([]bool{sampled}, len(ids))...)
	}
	var turn []int32
	for i, s := range d.Segments {
		text := s.Text
		if s.Call != nil {
			if text, err = agent.ToolCallText(s.Call.Agent, s.Call.Subtask); err != nil {
				return nil, err
			}
		}
		ids := w.tokenizer.Encode(text)
		switch {
		case s.Sampled:
			if !w.speaksCompact() {
				ids = append(ids, dialect.Stops().IDs[0])
			}
			turn = ids
		case w.speaksCompact(): // its segments are the dialect's words already
		case i == 0:
			ids, _, err = dialect.Prompt(s.Text)
		case turn == nil:
			return nil, errors.New("an observation before the agent's first turn")
		default:
			ids, _, err = dialect.Observe(turn, []agent.Result{{Call: agent.Call{Name: "tool", Arguments: json.RawMessage("{}")}, Text: s.Text}})
		}
		if err != nil {
			return nil, err
		}
		add(ids, s.Sampled)
	}
	return q, nil
}
