package trainer

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/mgrpo/mgrpo/trainer/agent"
	"github.com/mgrpo/mgrpo/trainer/agent/compact"
	"github.com/mgrpo/mgrpo/trainer/agent/tool"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/task"
	"github.com/mgrpo/mgrpo/trainer/task/research"
	"github.com/mgrpo/mgrpo/trainer/tokenizer"
)

// shapeTokenizer is the tokenizer of a model that has none of its own yet.
func shapeTokenizer(cfg *config.Config, s *config.Shape) (*tokenizer.Tokenizer, error) {
	if s.Tokenizer != "task" {
		path, err := cfg.Find(s.Tokenizer)
		if err != nil {
			return nil, err
		}
		return tokenizer.Load(path)
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
	if w.cfg.Run.Date != "" {
		date, err := time.Parse(time.DateOnly, w.cfg.Run.Date)
		if err != nil {
			return nil, err
		}
		c.Date = date
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
