package endtoend

import (
	"context"
	"errors"
	"hash/fnv"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/mgrpo/mgrpo/trainer"
	"github.com/mgrpo/mgrpo/trainer/agent/dialect"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer"
	"github.com/mgrpo/mgrpo/trainer/run/assemble"
	"github.com/mgrpo/mgrpo/trainer/task"
	"github.com/mgrpo/mgrpo/trainer/task/research"
)

// TestMainOnly freezes the researcher after its cold start. Its weights stay bitwise equal and it
// has no optimizer, but it takes part, and its version advances with the planner's, which learns.
func TestMainOnly(t *testing.T) {
	dir := t.TempDir()
	seen := mustTrain(t, load(t, dir, "run.arm=main_only", "run.checkpoint_every=1", "run.keep=9"), trainer.TrainOptions{})
	first, last := digests(t, dir, 1), digests(t, dir, 3)
	if first["researcher/model.safetensors"] != last["researcher/model.safetensors"] {
		t.Error("the frozen researcher changed")
	}
	if first["planner/model.safetensors"] == last["planner/model.safetensors"] {
		t.Error("the planner did not change")
	}
	if _, ok := last["researcher/optimizer.state"]; ok {
		t.Error("a frozen agent has an optimizer state")
	}
	if loss := seen.find(t, "cold_start", 0, "researcher").Values["loss"]; !(loss > 0) {
		t.Errorf("the researcher's cold start ended at %v", loss)
	}
	if calls := seen.find(t, "step", 3, "researcher").Values["calls_mean"]; calls == 0 {
		t.Error("the researcher was never called")
	}
}

// TestFrozenBySetting checks the same with train: false, and with a resume in the middle.
func TestFrozenBySetting(t *testing.T) {
	dir, seen := t.TempDir(), &recorder{}
	cfg := load(t, dir, "agents.researcher.train=false")
	err := trainer.Train(t.Context(), cfg, trainer.TrainOptions{Observer: seen, Stop: stopIn(seen, "planner", "step-0")})
	if !errors.Is(err, trainer.ErrStopped) {
		t.Fatal(err)
	}
	before := digests(t, dir, 1)
	mustTrain(t, cfg, trainer.TrainOptions{Resume: true})
	if digests(t, dir, 3)["researcher/model.safetensors"] != before["researcher/model.safetensors"] {
		t.Error("the frozen researcher changed")
	}
}

// TestSingle runs the baseline of one agent with the search tool. It has no sub-agents, learns from its own demonstrations, and searches.
func TestSingle(t *testing.T) {
	dir := t.TempDir()
	seen := mustTrain(t, load(t, dir, "run.arm=single", "run.steps=2", "run.threads=1", "agents.planner.cold_start.steps=60"), trainer.TrainOptions{})
	files := digests(t, dir, 2)
	for name := range files {
		if !strings.HasPrefix(name, "planner/") {
			t.Errorf("%s is in the checkpoint", name)
		}
	}
	for _, r := range seen.Records {
		if r.Agent != "planner" {
			t.Errorf("there is a record of %s", r.Agent)
		}
	}
	searched := false
	for _, l := range readTrajectories(t, dir, "step-1", "planner") {
		for _, turn := range l.Turns {
			searched = searched || strings.HasPrefix(turn.Text, "<docs>")
		}
		if len(l.Calls) > 0 {
			t.Errorf("%s delegated", l.ID)
		}
	}
	if !searched {
		t.Error("no trajectory contains the result of a search")
	}
}

// routedDialect uses the planner's grammar, and divides its calls between two sub-agents by a hash of their tasks.
type routedDialect struct{ dialect.Dialect }

func (r routedDialect) Parse(turn []int32) dialect.Action {
	a := r.Dialect.Parse(turn)
	for i := range a.Calls {
		h := fnv.New32a()
		h.Write([]byte(a.Calls[i].Task))
		if a.Calls[i].Delegate && h.Sum32()%2 == 1 {
			a.Calls[i].Name = "librarian"
		}
	}
	return a
}

// TestThreeAgents trains two kinds of sub-agents, each with its own groups. One process and three workers end with the same bits.
func TestThreeAgents(t *testing.T) {
	text, err := os.ReadFile(quickstart)
	if err != nil {
		t.Fatal(err)
	}
	_, researcher, found := strings.Cut(string(text), "\n  researcher:\n")
	if !found {
		t.Fatal("the quickstart does not end with the researcher")
	}
	text = append(text, "\n  librarian:\n"+researcher...)
	run := func(dir string, sets []string, names ...[]string) *recorder {
		t.Helper()
		seen := &recorder{}
		var wg sync.WaitGroup
		for _, agents := range names {
			wg.Go(func() {
				all := slices.Concat(small, []string{"run.dir=" + dir, "run.steps=2",
					"agents.librarian.cold_start.steps=60", "agents.librarian.cold_start.batch=16", "agents.librarian.cold_start.optimizer.warmup=5",
					"agents.planner.delegates=[researcher]", "agents.librarian.optimizer.decay_steps=0", "agents.librarian.optimizer.warmup=1"}, sets)
				cfg, err := config.Parse(quickstart, text, all)
				if err != nil {
					t.Error(err)
					return
				}
				if err := trainRouted(t.Context(), cfg, trainer.TrainOptions{Agents: agents, Observer: seen}); err != nil {
					t.Errorf("%v: %v", agents, err)
				}
			})
		}
		wg.Wait()
		return seen
	}
	one, several := t.TempDir(), t.TempDir()
	seen := run(one, nil, nil)
	again := run(several, []string{"store.url=" + startRedis(t), "run.threads=1"}, []string{"librarian"}, []string{"planner"}, []string{"researcher"})
	if t.Failed() {
		return
	}
	for _, name := range []string{"researcher", "librarian"} {
		if v := seen.find(t, "step", 1, name).Values; v["calls_mean"] == 0 || v["calls_mean"] >= seen.find(t, "step", 1, "planner").Values["calls_mean"] {
			t.Errorf("%s was called %v times per rollout", name, v["calls_mean"])
		}
	}
	got := digests(t, several, 2)
	sameWeights(t, got, digests(t, one, 2))
	sameNumbers(t, again.numbers(), seen.numbers())
	if got["researcher/model.safetensors"] == got["librarian/model.safetensors"] {
		t.Error("the two sub-agents have the same weights")
	}
}

// routedTask is the research task with a planner whose calls are routed. A user's own task sets a dialect in the same way.
type routedTask struct{ *research.Task }

func (t routedTask) Dialect(role task.AgentRole, words *tokenizer.Tokenizer) (dialect.Dialect, error) {
	d, err := t.Task.Dialect(role, words)
	if err != nil || !role.Main {
		return d, err
	}
	return routedDialect{d}, nil
}

func trainRouted(ctx context.Context, cfg *config.Config, opt trainer.TrainOptions) error {
	t, err := assemble.OpenTask(cfg, 1)
	if err != nil {
		return err
	}
	opt.Task = routedTask{t.(*research.Task)}
	return trainer.Train(ctx, cfg, opt)
}
