package assemble

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/mgrpo/mgrpo/trainer/agent"
	"github.com/mgrpo/mgrpo/trainer/agent/play"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/internal/texts"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/ordered"
	"github.com/mgrpo/mgrpo/trainer/task"
)

// OpenPlayer returns the player of an agent: it opens the agent's tools and reads its prompt. The caller sets its Policy.
// note, if set, is called when a step takes long.
func OpenPlayer(ctx context.Context, cfg *config.Config, a *config.Agent, t task.Task, tok *tokenizer.Tokenizer, note func(string)) (*play.Player, error) {
	s, err := openPlayerSettings(ctx, cfg, a, t, note)
	if err != nil {
		return nil, err
	}
	s.Tokenizer = tok
	return play.New(s)
}

// openPlayerSettings returns the settings of a player, without the source of its turns. It opens the tools.
func openPlayerSettings(ctx context.Context, cfg *config.Config, a *config.Agent, t task.Task, note func(string)) (s play.Options, err error) {
	s = play.Options{
		Role: task.AgentRole{Agent: a.Name, Main: a.IsMain(), Tools: cfg.ToolsOf(a)}, Seed: cfg.Run.Seed, Task: t,
		Limits: limits(a.Limits), MaxLag: cfg.GRPO.MaxLag, Absent: absentAgents(cfg),
	}
	if s.Role.System, err = systemPrompt(cfg, a); err != nil {
		return s, err
	}
	if cfg.Run.Date != "" {
		if s.Date, err = time.Parse(time.DateOnly, cfg.Run.Date); err != nil {
			return s, err
		}
	}
	if a.Template != "" {
		v, err := ordered.Parse([]byte(a.Template))
		if err != nil {
			return s, fmt.Errorf("agents.%s.template: %w", a.Name, err)
		}
		s.Variables, _ = v.(*ordered.Object)
	}
	if s.Role.Main {
		for _, sub := range cfg.Subs() {
			if slices.Contains(a.Delegates, sub.Name) {
				s.SubAgents = append(s.SubAgents, agent.SubAgent{Name: sub.Name, Description: describe(sub)})
			}
		}
	}
	for _, c := range s.SubAgents {
		s.Role.Delegates = append(s.Role.Delegates, c.Name)
	}
	s.Tools, err = openTools(ctx, cfg, s.Role.Tools, note)
	return s, err
}

// absentAgents returns the agents of the configuration that its arm leaves out.
func absentAgents(cfg *config.Config) []string {
	var names []string
	for _, a := range cfg.Agents {
		if !slices.Contains(cfg.AgentNames(), a.Name) {
			names = append(names, a.Name)
		}
	}
	return names
}

func systemPrompt(cfg *config.Config, a *config.Agent) (string, error) {
	switch {
	case cfg.Run.Arm == "single" && a.PromptSingle != "":
		return a.PromptSingle, nil
	case a.Prompt == "":
		return a.PromptText, nil
	}
	text, err := texts.ReadFile(cfg.Resolve(a.Prompt))
	if err != nil {
		return "", fmt.Errorf("agents.%s.prompt: %w", a.Name, err)
	}
	return text, nil
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

// shapeTokenizer returns the tokenizer for a model with random weights: the tokenizer of t, or of a folder. If t is nil,
// the configured task is used, which is opened only if its kind may have a vocabulary.
func shapeTokenizer(cfg *config.Config, s *config.Shape, t task.Task) (*tokenizer.Tokenizer, error) {
	if s.Tokenizer != "task" {
		path, err := cfg.Find(s.Tokenizer)
		if err != nil {
			return nil, err
		}
		return tokenizer.Load(path)
	}
	if kind := cfg.Task.Kind; t == nil && (kind == "research" || kind == "go") { // tasks that are read from files have no vocabulary
		var err error
		if t, err = OpenTask(cfg, 1); err != nil {
			return nil, err
		}
	}
	speaker, ok := t.(task.WithDialect)
	if !ok {
		return nil, fmt.Errorf("tokenizer is task, which is the default, but the task %s does not have a vocabulary: name a folder with a tokenizer.json",
			cfg.Task.Kind)
	}
	return speaker.Tokenizer()
}

// Demonstrations returns the conversations for an agent's cold start, of at most limit tokens each. It returns an error
// if there are none.
func Demonstrations(cfg *config.Config, p *play.Player, limit int) (play.Demonstrated, error) {
	source, err := demonstrator(cfg, p)
	if err != nil {
		return play.Demonstrated{}, err
	}
	out, err := p.Demonstrations(source, cfg.ColdStart.Queries, limit)
	if err != nil || len(out.Trajectories) > 0 {
		return out, err
	}
	if out.All() > 0 {
		return out, fmt.Errorf("%s has no demonstration that it can use: %v; raise its limits.max_tokens, shorten the demonstrations, "+
			"or set its cold_start.steps to 0", p.Role.Agent, out)
	}
	return out, fmt.Errorf("there are no demonstrations for %s: set its cold_start.steps to 0, or add some", p.Role.Agent)
}

// demonstrator returns the source of demonstrations.
func demonstrator(cfg *config.Config, p *play.Player) (task.WithDemonstrations, error) {
	if cfg.ColdStart.Demonstrations == "task" {
		source, ok := p.Task.(task.WithDemonstrations)
		if !ok {
			return nil, fmt.Errorf("the task %s does not have demonstrations: name a JSONL file of chats in cold_start.demonstrations", p.Task.Name())
		}
		return source, nil
	}
	file := &play.Chats{Path: cfg.Resolve(cfg.ColdStart.Demonstrations), Program: cfg.PlayedByProgram(), Alone: cfg.Run.Arm == "single"}
	for _, a := range cfg.Agents {
		file.Agents = append(file.Agents, a.Name)
	}
	return file, nil
}
