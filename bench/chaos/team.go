package main

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mgrpo/mgrpo/bench/chaos/check"
	"github.com/mgrpo/mgrpo/trainer/metrics"
)

//go:embed team.yaml
var teamYAML string

const (
	runName   = "chaos"
	evalEvery = 10            // eval.every of team.yaml. A run that grows must have had an evaluation at its old end
	moreSteps = 2 * evalEvery // steps that a growing run adds
)

// The environment of a program built with the tag failpoint. trainer/internal/failpoint, which only trainer/ may import, describes it.
const (
	killEnv      = "MGRPO_FAILPOINT"
	pointsLogEnv = "MGRPO_FAILPOINT_LOG"
)

// mixture is a researcher of team.yaml's size, with experts in its layers.
const mixture = "{family: qwen3_moe, width: 32, layers: 2, heads: 2, kv_heads: 1, head_dim: 16, ffn: 64, experts: 4, experts_per_token: 2, " +
	"expert_ffn: 32, max_positions: 192}"

// hybrid returns a model of team.yaml's size, whose last of three layers attends. The others have gated delta rules in the main agent, and
// short convolutions in sub-agents.
func hybrid(isMain bool) string {
	family := map[bool]string{true: "qwen3_5_text", false: "lfm2"}[isMain]
	return "{family: " + family + ", width: 32, layers: 3, heads: 2, kv_heads: 1, head_dim: 16, ffn: 64, max_positions: 192}"
}

// adapters configures the adapters of sub-agents that adapt a model. They are on attention's projections, because a mixture of experts has
// these, too. A hybrid names them differently, and has adapters on the projections of its convolutions.
const (
	adapters         = "{r: 4, targets: [q_proj, k_proj, v_proj, o_proj]}"
	adaptersOfHybrid = "{r: 4, targets: [q_proj, k_proj, v_proj, in_proj, out_proj]}"
)

// team is the trained team, with its folders and settings.
type team struct {
	options options
	names   []string // the main agent first
	steps   int      // of both runs; more than the flag if these are too few for all kills
	set     []string // settings of both runs, in addition to the file and the number of steps
}

func newTeam(o options) *team {
	t := &team{options: o, names: []string{"planner", "researcher"}, steps: o.steps}
	if o.agents == 3 {
		t.names = append(t.names, "librarian")
	}
	t.set = []string{fmt.Sprintf("run.checkpoint_every=%d", o.every), "cold_start.demonstrations=none"}
	if o.ranks > 1 {
		t.set = append(t.set, "agents.planner.devices=["+strings.Join(slices.Repeat([]string{"cpu"}, o.ranks), ", ")+"]")
	}
	targets := adapters
	if o.hybrid && !o.moe {
		targets = adaptersOfHybrid
	}
	for i, name := range t.names {
		model := name
		if o.lora && i > 0 {
			model = t.names[1]
			t.set = append(t.set, "agents."+name+".lora="+targets)
		}
		t.set = append(t.set, "agents."+name+".model="+filepath.Join(t.coldStartDir(), "checkpoints", "step-000000", model))
	}
	return t
}

func (t *team) path(parts ...string) string {
	return filepath.Join(append([]string{t.options.work}, parts...)...)
}

func (t *team) config() string           { return t.path("team.yaml") }
func (t *team) coldStartDir() string     { return t.path("taught") } // the run that only makes the cold start
func (t *team) uninterruptedDir() string { return t.path("whole") }  // the uninterrupted run
func (t *team) points() string           { return t.path("points") } // logs of failpoints
func (t *team) program() string          { return t.path("..", "mgrpo") }

// dir returns an agent's folder in the killed run.
func (t *team) dir(agent string) string {
	if t.options.shared {
		return t.path("run")
	}
	return t.path("run", agent)
}

// settings returns the settings of both runs, in addition to the file.
func (t *team) settings() []string {
	return append(slices.Clone(t.set), "run.steps="+strconv.Itoa(t.steps))
}

// build builds the program, and makes the folder of the runs.
func (t *team) build(ctx context.Context) error {
	if err := errors.Join(os.RemoveAll(t.options.work), os.MkdirAll(t.points(), 0o755)); err != nil {
		return err
	}
	text := teamYAML
	if len(t.names) == 3 { // an agent that is never called, but trains, saves and is killed like the other agents
		_, researcher, _ := strings.Cut(teamYAML, "\n  researcher:\n")
		text += "  librarian:\n" + researcher
	}
	if err := os.WriteFile(t.config(), []byte(text), 0o644); err != nil {
		return err
	}
	args := []string{"build", "-buildvcs=false", "-tags", "failpoint", "-o", t.program()}
	if t.options.overlay != "" {
		args = append(args, "-overlay", t.options.overlay)
	}
	return command(ctx, "go", append(args, "./cmd/mgrpo")...)
}

// coldStart makes the initial weights of both runs.
func (t *team) coldStart(ctx context.Context) error {
	args := []string{"train", t.config(), "--set", "run.steps=0", "--set", "run.dir=" + t.coldStartDir()}
	for i, name := range t.names {
		if t.options.hybrid {
			args = append(args, "--set", "agents."+name+".model="+hybrid(i == 0))
		}
	}
	if t.options.moe {
		args = append(args, "--set", "agents.researcher.model="+mixture)
	}
	return command(ctx, t.program(), args...)
}

// trainUninterrupted trains the team without interruption, in one process on an embedded store. It returns the duration of a
// step.
func (t *team) trainUninterrupted(ctx context.Context) (time.Duration, error) {
	if err := os.RemoveAll(t.uninterruptedDir()); err != nil {
		return 0, err
	}
	args := []string{"train", t.config(), "--set", "run.dir=" + t.uninterruptedDir()}
	for _, s := range t.settings() {
		args = append(args, "--set", s)
	}
	started := time.Now()
	err := command(ctx, t.program(), args...)
	return time.Since(started) / time.Duration(t.steps), err
}

// command runs a program. If it fails, the error has its output.
func command(ctx context.Context, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, out)
	}
	return nil
}

// worker returns the command of an agent's worker.
func (t *team) worker(r *server, agent, points, kill string) (*exec.Cmd, error) {
	args := []string{"worker", t.config(), "--agent", agent, "--resume"}
	for _, s := range append([]string{"run.dir=" + t.dir(agent), "store.username=" + runName + "-" + agent}, append(r.settings(), t.settings()...)...) {
		args = append(args, "--set", s)
	}
	cmd := exec.Command(t.program(), args...)
	cmd.Env = append(os.Environ(), passwordEnv+"="+r.password, pointsLogEnv+"="+points, killEnv+"="+kill)
	log, err := os.OpenFile(t.path(agent+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	return cmd, cmd.Start()
}

// progress returns the main agent's number of steps, which is the number of lines of its ledger.
func (t *team) progress() int {
	data, err := os.ReadFile(filepath.Join(t.dir(t.names[0]), "ledger", t.names[0]+".jsonl"))
	if err != nil {
		return 0
	}
	return bytes.Count(data, []byte("\n"))
}

// check checks both runs.
func (t *team) check(ctx context.Context, r *server) check.Findings {
	dirs := map[string]string{}
	for _, name := range t.names {
		dirs[name] = t.dir(name)
	}
	return check.Run(ctx, check.Settings{Run: runName, Steps: int64(t.steps), Whole: t.uninterruptedDir(), Dirs: dirs, Agents: t.names, Store: r.url(true),
		CA: r.cert, Kills: t.path("kills.jsonl"), Minimum: t.options.kills})
}

// sameMetrics reports whether the agents reported the same numbers as in the uninterrupted run, except times.
func (t *team) sameMetrics() (bool, error) {
	same, compared := true, 0
	for _, name := range t.names {
		want, err := numbers(t.uninterruptedDir(), name)
		if err != nil {
			return false, err
		}
		got, err := numbers(t.dir(name), name)
		if err != nil {
			return false, err
		}
		compared += len(want)
		for key, v := range want {
			if got[key] != v {
				same = false
				logf("%s: %v, but %v in the uninterrupted run", key, got[key], v)
			}
		}
		for key, v := range got {
			if _, there := want[key]; !there {
				same = false
				logf("%s: %v, but absent in the uninterrupted run", key, v)
			}
		}
	}
	return same && compared > 0, nil
}

// numbers returns an agent's reported values in a run's folder by "agent kind step name", without values that depend on clock or machine.
func numbers(dir, agent string) (map[string]float64, error) {
	log, err := metrics.Read(dir)
	if err != nil {
		return nil, err
	}
	out := map[string]float64{}
	for _, l := range log.Records {
		for name, v := range l.Values {
			if l.Agent == agent && !metrics.VariesBetweenRuns(name) {
				out[fmt.Sprintf("%s %s %d %s", l.Agent, l.Kind, l.Step, name)] = v
			}
		}
	}
	return out, nil
}
