package main

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/config"
)

// arm is one way to train, as a difference to the quickstart's.
type arm struct {
	name  string
	title string // in the table
	start string // name of the cold start it begins with
	set   []string
}

// arms are the rows of the table; the first is the one that the others are compared with.
var arms = []arm{
	{"draw", "co-train, duplicate/drop", "team", nil},
	{"balanced", "co-train, balanced weights d/d_k", "team", []string{"grpo.align.mode=balanced"}},
	{"none", "co-train, no alignment (each sub weight 1)", "team", []string{"grpo.align.mode=none"}},
	{"draw-batch", "co-train, dup/drop, one sub group per batch", "team", []string{"grpo.sub_group=batch"}},
	{"main-only", "main only (researcher frozen after SFT)", "team", []string{"run.arm=main_only"}},
	{"single", "single agent (search tool)", "single", nil},
}

// starts are the cold starts: their configuration and agents.
var starts = map[string]struct {
	config string // in the repository
	agents []string
}{
	"team":   {"examples/quickstart/team.yaml", []string{"planner", "researcher"}},
	"single": {"bench/ablation/single.yaml", []string{"single"}},
}

// chosen are the arms of a comma-separated list, in the order of the table.
func chosen(list string) ([]arm, error) {
	names := strings.Split(list, ",")
	var out []arm
	for _, a := range arms {
		if slices.Contains(names, a.name) {
			out = append(out, a)
		}
	}
	for _, n := range names {
		if !slices.ContainsFunc(arms, func(a arm) bool { return a.name == n }) {
			return nil, fmt.Errorf("there is no arm %q: arms are %s", n, strings.Join(armNames(), ", "))
		}
	}
	return out, nil
}

func armNames() []string {
	out := make([]string, len(arms))
	for i, a := range arms {
		out[i] = a.name
	}
	return out
}

// endless is more steps than any token budget pays for.
const endless = "run.steps=1000000"

// coldStartConfig teaches the agents of a start and trains no further.
func (b *bench) coldStartConfig(start string, seed int) (*config.Config, error) {
	return b.configuration(start, seed, "cold-"+start, "run.steps=0", "eval.queries=1", "eval.samples=1")
}

// armConfig begins with the weights of a cold start's checkpoint. The rate is constant, so that no arm has a
// schedule that ends before or after its tokens.
func (b *bench) armConfig(a arm, seed int, from string) (*config.Config, error) {
	sets := []string{endless, "run.checkpoint_every=0", "cold_start.demonstrations=none",
		"eval.before=false", fmt.Sprintf("eval.every=%d", b.every), fmt.Sprintf("eval.samples=%d", b.samples)}
	for _, name := range starts[a.start].agents {
		key := "agents." + name + "."
		sets = append(sets, key+"model="+filepath.Join(from, name),
			key+"optimizer.schedule=constant", key+"optimizer.decay_steps=0")
	}
	return b.configuration(a.start, seed, a.name, slices.Concat(sets, a.set)...)
}

// configuration reads a start's configuration, with a thread an agent. Settings of the command line come first, so that
// those which define an arm override them.
func (b *bench) configuration(start string, seed int, folder string, sets ...string) (*config.Config, error) {
	dir, err := filepath.Abs(filepath.Join(b.work, fmt.Sprintf("seed-%d", seed), folder))
	if err != nil {
		return nil, err
	}
	own := []string{fmt.Sprintf("run.seed=%d", seed), "run.dir=" + dir, fmt.Sprintf("run.threads=%d", len(starts[start].agents))}
	return config.Load(filepath.Join(b.root, starts[start].config), slices.Concat(b.set, own, sets))
}
