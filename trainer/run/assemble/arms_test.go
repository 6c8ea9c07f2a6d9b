package assemble

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/agent/play"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/tokenizertest"
	"github.com/mgrpo/mgrpo/trainer/task"
)

// TestEveryArmOfEveryExample checks that the setting that turns an example into a baseline leaves
// agents that can act. A single agent is offered all tools of the team, but no agents to delegate to.
func TestEveryArmOfEveryExample(t *testing.T) {
	files, err := filepath.Glob("../../../examples/*/*.yaml")
	if err != nil || len(files) < 4 {
		t.Fatalf("%v, %v", files, err)
	}
	qwen := tokenizertest.Golden(t, "qwen3")
	for _, path := range files {
		for _, arm := range []string{"team", "main_only", "single"} {
			cfg, err := config.Load(path, []string{"run.arm=" + arm})
			if err != nil {
				t.Fatal(err)
			}
			if cfg.Task.Kind == "go" {
				continue // the agents' actions come from the program
			}
			for _, name := range cfg.AgentNames() {
				if cfg.Agent(name).Model.Endpoint != nil {
					continue // endtoend.TestHosted covers hosted models
				}
				if why := promptFault(t, cfg, name, qwen); why != "" {
					t.Errorf("%s, %s: %s %s", path, arm, name, why)
				}
			}
		}
	}
}

// TestDemonstrationsOfTables: the agents of examples/tables learn from all 640 conversations of their file, which call their own tools and
// agents only.
func TestDemonstrationsOfTables(t *testing.T) {
	smol := tokenizertest.Golden(t, "smollm2")
	for arm, file := range map[string]string{"team": "demonstrations", "single": "demonstrations-single"} {
		cfg, err := config.Load("../../../examples/tables/team.yaml",
			[]string{"run.arm=" + arm, "cold_start.demonstrations=../../testdata/tables/" + file + ".jsonl"})
		if err != nil {
			t.Fatal(err)
		}
		source, err := OpenTask(cfg, 1)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range cfg.AgentNames() {
			a := cfg.Agent(name)
			p, err := OpenPlayer(t.Context(), cfg, a, source, smol, nil)
			if err != nil {
				t.Fatal(err)
			}
			taught, err := Demonstrations(cfg, p, a.Limits.MaxTokens)
			if want := int(a.ColdStart.Steps) * a.ColdStart.Batch; err != nil || len(taught.Trajectories) != want || taught.All() != want {
				t.Errorf("%s, %s: %v, %v; want all of %d", arm, name, taught, err, want)
			}
			if err := p.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// promptFault returns the fault of an agent's prompt, or "".
func promptFault(t *testing.T, cfg *config.Config, name string, tok *tokenizer.Tokenizer) string {
	t.Helper()
	source, err := OpenTask(cfg, 1)
	if err != nil {
		t.Fatal(err)
	}
	if speaker, ok := source.(task.WithDialect); ok {
		if tok, err = speaker.Tokenizer(); err != nil {
			t.Fatal(err)
		}
	}
	p, err := OpenPlayer(t.Context(), cfg, cfg.Agent(name), source, tok, nil)
	if err != nil {
		return err.Error()
	}
	defer p.Close()
	if _, ok := source.(task.WithDialect); ok {
		return "" // the grammar determines the agents' actions
	}
	if cfg.ColdStart.Demonstrations != "none" {
		if taught, err := Demonstrations(cfg, p, 4096); err != nil || len(taught.Trajectories) == 0 {
			return fmt.Sprintf("learns from %d demonstrations: %v", len(taught.Trajectories), err)
		}
	}
	p.Policy = stoppingPolicy{tok.StopIDs()[0]}
	said, err := p.Play(t.Context(), play.Conversation{Text: "?"})
	if err != nil {
		return err.Error()
	}
	prompt := said.Turns[0].Text
	offered := func(tool string) bool { return strings.Contains(prompt, `"name": "`+tool+`"`) }
	var others []string
	for _, a := range cfg.Agents {
		mine := a.Name == name || cfg.Run.Arm == "single"
		if i := slices.IndexFunc(a.Tools, func(tool string) bool { return mine && !offered(tool) }); i >= 0 {
			return "is not offered " + a.Tools[i]
		}
		if a.Name != name {
			others = append(others, a.Name)
		}
	}
	switch main := cfg.Agent(name).IsMain(); {
	case main && cfg.Run.Arm == "single":
		if i := slices.IndexFunc(others, func(other string) bool { return strings.Contains(prompt, other) }); i >= 0 {
			return "is told of " + others[i]
		}
	case main && !slices.ContainsFunc(cfg.Agent(name).Delegates, offered) && len(others) > 0:
		return "has no agent to delegate to"
	}
	return ""
}
