package main

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/config"
)

// arm is one way to train, as a difference from team.yaml.
type arm struct {
	name    string
	title   string // in the table
	start   string // name of its cold start
	against string // the arm for comparison; "": the first
	set     []string
}

// arms holds the rows of the table.
var arms = slices.Concat(fanOut, furtherArms)

// fanOut holds the arms of the study of fan-out questions, which run by default.
var fanOut = []arm{
	{"draw", "co-train, duplicate/drop, d = 4", "team", "", nil},
	{"balanced", "co-train, balanced weights d/d_k", "team", "", []string{"grpo.align.mode=balanced"}},
	{"none", "co-train, no alignment (each sub weight 1)", "team", "", []string{"grpo.align.mode=none"}},
	{"draw-batch", "co-train, dup/drop, one sub group per batch", "team", "", []string{"grpo.sub_group=batch"}},
	{"main-only", "main only (researcher frozen after SFT)", "team", "", []string{"run.arm=main_only"}},
	{"single", "single agent (search tool)", "single", "", nil},
	{"draw-2", "co-train, duplicate/drop, d = 2", "team", "", []string{"grpo.align.d=2"}},
	{"draw-8", "co-train, duplicate/drop, d = 8", "team", "", []string{"grpo.align.d=8"}},
	{"draw-16", "co-train, duplicate/drop, d = 16", "team", "", []string{"grpo.align.d=16"}},
	{"lag-0", "co-train, old log-probs recomputed, not stale", "team", "", lag(0)},
	{"lag-1", "co-train, one version stale", "team", "lag-0", lag(1)},
	{"lag-4", "co-train, four versions stale", "team", "lag-0", lag(4)},
	{"no-expert", "co-train, sub reward without expert score", "team", "", []string{"grpo.reward.sub.main=0.9", "grpo.reward.sub.expert=0"}},
	{"no-main", "co-train, sub reward without main answer", "team", "", []string{"grpo.reward.sub.main=0", "grpo.reward.sub.expert=0.9"}},
}

// furtherArms holds the arms of other studies.
var furtherArms = []arm{
	{"lag-0-none", "no alignment, old log-probs recomputed, not stale", "team", "lag-0", lag(0, "grpo.align.mode=none")},
	{"lag-4-none", "no alignment, four versions stale", "team", "lag-4", lag(4, "grpo.align.mode=none")},
	{"lag-4-balanced", "balanced weights d/d_k, four versions stale", "team", "lag-4", lag(4, "grpo.align.mode=balanced")},
	{"kl", "co-train, KL term to the cold start for both agents", "team", "", []string{"grpo.kl=k3", "grpo.kl_coef=0.02", "grpo.reference=start"}},
	{"removal", "co-train, removal credit in place of the main answer", "team", "", []string{"grpo.credit=removal"}},
}

// lag returns settings that train on trajectories up to `versions` versions old, and further ones. The importance weights for this are
// the same at every lag, so lag-0 differs from the others only in the age. No step is rolled out ahead of an evaluation, so these arms
// have few evaluations.
func lag(versions int, further ...string) []string {
	return append([]string{"grpo.old=recomputed", "grpo.tis_cap=2", fmt.Sprintf("grpo.max_lag=%d", versions),
		fmt.Sprintf("grpo.exact_lag=%v", versions > 0), "eval.every=15"}, further...)
}

// base returns the name of the arm that a is compared with.
func (a arm) base() string { return cmp.Or(a.against, arms[0].name) }

// starts holds the cold starts: their configuration and agents.
var starts = map[string]struct {
	config string // path in the repository
	agents []string
}{
	"team":   {"bench/studies/ablation/team.yaml", []string{"planner", "researcher"}},
	"single": {"bench/studies/ablation/single.yaml", []string{"single"}},
}

// chosen returns the arms of a comma-separated list, in the order of the table.
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
			return nil, fmt.Errorf("there is no arm %q: arms are %s", n, strings.Join(armNames(arms), ", "))
		}
	}
	return out, nil
}

func armNames(arms []arm) []string {
	out := make([]string, len(arms))
	for i, a := range arms {
		out[i] = a.name
	}
	return out
}

// endless sets more steps than any token budget allows.
const endless = "run.steps=1000000"

// armConfig returns an arm's configuration, which begins with the weights of a cold start's checkpoint. The rate is constant, because a
// schedule would end before or after the arm's tokens.
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

// configuration reads a start's configuration, with one thread for each agent. The command line's settings come first, so an arm's
// settings override them.
func (b *bench) configuration(start string, seed int, folder string, sets ...string) (*config.Config, error) {
	own := []string{fmt.Sprintf("run.seed=%d", seed), "run.dir=" + b.dir(seed, folder), fmt.Sprintf("run.threads=%d", len(starts[start].agents))}
	return config.Load(filepath.Join(b.root, starts[start].config), slices.Concat(b.set, own, sets))
}

// dir returns the folder of a run.
func (b *bench) dir(seed int, folder string) string {
	return filepath.Join(b.work, fmt.Sprintf("seed-%d", seed), folder)
}
