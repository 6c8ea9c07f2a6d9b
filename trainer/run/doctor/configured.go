package doctor

import (
	"context"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/mgrpo/mgrpo/trainer/cgroup"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/run/assemble"
	"github.com/mgrpo/mgrpo/trainer/run/memory"
	"github.com/mgrpo/mgrpo/trainer/show/track"
	"github.com/mgrpo/mgrpo/trainer/task"
	"github.com/mgrpo/mgrpo/trainer/team/archive"
)

// Preflight returns a text that shows the memory and the disk space that the agents of this process (nil: all agents) will need. It
// allocates nothing. t may have the vocabulary of a model; if t is nil, the configured task is used. Preflight returns an error if a
// device has too little memory, with the table of the needs, or if the disk is too small for the checkpoints.
func Preflight(cfg *config.Config, agents []string, t task.Task) (plan string, err error) {
	needs, err := assemble.MemoryNeeds(cfg, agents, t)
	if plan, err = memoryPlan(needs, err); err != nil {
		return plan, err
	}
	f := checkpointSpace(cfg, needs)
	if f.Status == Fail {
		return "", fmt.Errorf("%s: %s", f.Found, f.Advice)
	}
	one, most := checkpointBytes(cfg, needs)
	return plan + fmt.Sprintf("checkpoints: %s each, up to %s at a time\n", memory.Size(one), memory.Size(most)), nil
}

// PreflightMachine returns the same text for a further machine of an agent, without the disk space.
func PreflightMachine(cfg *config.Config, agent string, machine int) (plan string, err error) {
	return memoryPlan(assemble.MachineNeeds(cfg, agent, machine))
}

func memoryPlan(needs []memory.Need, err error) (plan string, _ error) {
	if err != nil {
		return "", err
	}
	free := available()
	var table strings.Builder
	memory.Write(&table, needs, free)
	return table.String(), memory.Fits(needs, free)
}

// checkConfiguration checks the needs of the configuration's agents: it opens everything that a training opens, except weights.
func checkConfiguration(ctx context.Context, cfg *config.Config, agents []string) (out []Finding) {
	out = tracking(ctx, cfg)
	if text := assemble.KLWarning(cfg); text != "" {
		fault, cure, _ := strings.Cut(text, ": ")
		out = append(out, Finding{Warn, "grpo", fault, cure})
	}
	t, noTask := assemble.OpenTask(cfg, len(cfg.AgentNames()))
	if noTask != nil {
		out = append(out, Finding{Fail, "task", oneLine(noTask), ""})
	} else {
		out = append(out, checkParts(ctx, cfg, t, agents)...)
		task.Close(t)
	}
	needs, err := assemble.MemoryNeeds(cfg, agents, nil)
	if err == nil {
		return append(out, checkMemoryAndDisk(cfg, needs)...)
	}
	if noTask != nil && err.Error() != noTask.Error() { // with a task, each agent's finding contains it
		out = append(out, Finding{Fail, "models", oneLine(err), ""})
	}
	return append(out, runDisk(cfg, 0, 0))
}

// checkParts checks how answers are scored, and assembles the parts of each agent.
func checkParts(ctx context.Context, cfg *config.Config, t task.Task, agents []string) []Finding {
	out := []Finding{{OK, "task", cfg.Task.Kind, ""}}
	if err := scores(ctx, cfg, t, agents); err != nil {
		out = append(out, Finding{Fail, "verifier", oneLine(err), ""})
	}
	train, heldOut := queries(cfg, t)
	if known := countRepeated(train, heldOut); known > 0 {
		out = append(out, Finding{Warn, "task", fmt.Sprintf("training uses %d of the %d held-out questions, too", known, len(heldOut)),
			"use other rows for task.eval: the accuracy must be measured on questions that no agent was trained on"})
	}
	for _, text := range assemble.RowWarnings(cfg, t) {
		fault, cure, _ := strings.Cut(text, ": ")
		out = append(out, Finding{Warn, "task", fault, cure})
	}
	for _, name := range agents {
		var checked []task.Query
		if name == cfg.Main().Name { // a sub-agent's prompts depend on the main agent
			checked = append(train, heldOut...)
		}
		found, err := assemble.DryRun(ctx, cfg, cfg.Agent(name), t, checked)
		if err != nil {
			out = append(out, Finding{Fail, name, oneLine(err), ""})
		}
		out = append(out, unusable(name, found, len(checked))...)
		out = append(out, servers(ctx, cfg, cfg.Agent(name))...)
		if a := cfg.Agent(name); a.Machines.Count > 1 {
			if _, err := cfg.MachinesKey(a); err != nil {
				out = append(out, Finding{Fail, name, oneLine(err), "its machines identify each other by this key (docs/ranks.md)"})
			}
		}
	}
	return out
}

// unusable warns of prompts and demonstrations that the agent cannot use.
func unusable(name string, found assemble.DryRunResult, queries int) (out []Finding) {
	if n := len(found.TooLong); n > 0 {
		out = append(out, Finding{Warn, name, fmt.Sprintf("%d of %d prompts leave no room for an answer; the longest is the prompt of %s", n, queries,
			found.TooLong[0].ID),
			fmt.Sprintf("raise agents.%s.limits.max_tokens, or remove the rows: nothing is sampled for them", name)})
	}
	if demonstrations := found.Demonstrations; demonstrations.TooLong+demonstrations.Beyond > 0 {
		out = append(out, Finding{Warn, name, demonstrations.String(),
			fmt.Sprintf("raise agents.%s.limits.max_tokens for long ones, and cold_start.queries to use more", name)})
	}
	return out
}

// tracking checks the experiment trackers that get the run's records.
func tracking(ctx context.Context, cfg *config.Config) []Finding {
	const mlflowTimeout = time.Minute // the import of the package mlflow takes seconds
	var to []string
	if project := cfg.Tracking.WandB; project != "" {
		to = append(to, "W&B, project "+project)
	}
	if experiment := cfg.Tracking.MLflow; experiment != "" {
		to = append(to, "MLflow, "+experiment)
	}
	if dir := cfg.Tracking.TensorBoard; dir != "" {
		to = append(to, "TensorBoard, "+cfg.Resolve(dir))
	}
	if len(to) == 0 {
		return nil
	}
	if err := track.Check(ctx, cfg); err != nil {
		return []Finding{{Fail, "tracking", oneLine(err), "otherwise remove the tracking section: a run does not start without its tracker"}}
	}
	ctx, cancel := context.WithTimeout(ctx, mlflowTimeout)
	defer cancel()
	if err := track.CheckServer(ctx, cfg); err != nil {
		return []Finding{{Warn, "tracking", "MLflow: " + oneLine(err),
			"start the server, or correct the address; else the run continues without it, and mgrpo track forwards the records later"}}
	}
	return []Finding{{OK, "tracking", strings.Join(to, "; "), ""}}
}

// servers requests the descriptions of the servers that sample for an agent. It also checks that their weights can be written.
func servers(ctx context.Context, cfg *config.Config, a *config.Agent) (out []Finding) {
	const serverTimeout = 20 * time.Second
	ctx, cancel := context.WithTimeout(ctx, serverTimeout)
	defer cancel()
	if err := checkWritable(cfg.Resolve(a.Engine.Weights.Path)); a.Engine.Remote() && err != nil {
		out = append(out, Finding{Fail, "engine", fmt.Sprintf("%s: %v", a.Name, err),
			fmt.Sprintf("agents.%s.engine.weights.path must be a folder in which the server can read its weights: choose another one", a.Name)})
	}
	answers, err := assemble.DescribeServers(ctx, cfg, a)
	for _, text := range answers {
		out = append(out, Finding{OK, "engine", text, ""})
	}
	if err != nil {
		out = append(out, Finding{Fail, "engine", a.Name + ": " + oneLine(err), "start the server (docs/engines.md); the run waits for it"})
	}
	return out
}

// maxQueries is the largest number of training queries that are checked.
const maxQueries = 100_000

// queries returns the training queries of the first epoch and the held-out queries. The lists are empty for a task with its
// own language (task.WithDialect), since such a task makes queries that fit and do not repeat.
func queries(cfg *config.Config, t task.Task) (train, heldOut []task.Query) {
	if _, ok := t.(task.WithDialect); ok {
		return nil, nil
	}
	for i := range int64(maxQueries) {
		q := t.Train(i)
		if q.ID != q.Row {
			break
		}
		train = append(train, q)
	}
	return train, task.HeldOut(t, cfg.Eval.Queries)
}

// countRepeated counts the held-out queries whose question is also a training question.
func countRepeated(train, heldOut []task.Query) (n int) {
	trained := map[string]bool{}
	for _, q := range train {
		trained[q.Text] = true
	}
	for _, q := range heldOut {
		if trained[q.Text] {
			n++
		}
	}
	return n
}

// scorePatience is the longest time that the verifiers may take.
const scorePatience = time.Minute

// scores tries the verifiers. A task with its own language (task.WithDialect) scores without verifiers.
func scores(ctx context.Context, cfg *config.Config, t task.Task, agents []string) error {
	if _, ok := t.(task.WithDialect); ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, scorePatience)
	defer cancel()
	return assemble.CheckVerifiers(ctx, cfg, t, agents)
}

// checkMemoryAndDisk compares the needs of the agents with the memory and the disk of this machine.
func checkMemoryAndDisk(cfg *config.Config, needs []memory.Need) (out []Finding) {
	free := available()
	for _, n := range needs {
		out = append(out, Finding{OK, "needs", n.String(), ""})
	}
	for _, s := range memory.Sums(needs, free) {
		out = append(out, Finding{OK, "in all", s.String(), ""})
	}
	if err := memory.Fits(needs, free); err != nil {
		out = append(out, checkShared(cfg, needs, free, err))
	}
	return append(out, checkpointSpace(cfg, needs))
}

// checkShared returns the finding for agents that do not fit on this machine together. It is a warning if the store is on a
// server: the workers can then run on different machines, and each of them fits here alone.
func checkShared(cfg *config.Config, needs []memory.Need, free map[string]int64, err error) Finding {
	names := map[string]bool{}
	for _, n := range needs {
		names[n.Agent] = true
	}
	if cfg.Store.URL == "" || len(names) < 2 {
		return Finding{Fail, "memory", oneLine(err), ""}
	}
	for name := range names {
		own := slices.DeleteFunc(slices.Clone(needs), func(n memory.Need) bool { return n.Agent != name })
		if err := memory.Fits(own, free); err != nil {
			return Finding{Fail, "memory", oneLine(err), ""}
		}
	}
	return Finding{Warn, "memory", "each agent fits here alone, but not all of them together: " + oneLine(err),
		"run their workers on several machines, and mgrpo doctor --agent NAME on each"}
}

// checkpointSpace compares the free space of the run's disk with the space that the run's checkpoints need in addition to existing
// ones.
func checkpointSpace(cfg *config.Config, needs []memory.Need) Finding {
	one, most := checkpointBytes(cfg, needs)
	return runDisk(cfg, most-sizeOf(archive.CheckpointsDir(cfg.RunDir())), one)
}

// runDisk checks that the run can write its files, and compares the free space of the checkpoints' disk with the needed bytes. The
// folder of the checkpoints may be a link to another disk. one is the size of a checkpoint; 0: it is unknown.
func runDisk(cfg *config.Config, needed, one int64) Finding {
	checkpoints := archive.CheckpointsDir(cfg.RunDir())
	for _, dir := range []string{cfg.RunDir(), checkpoints} {
		if err := checkWritable(dir); err != nil {
			return Finding{Fail, "disk", "run.dir: " + err.Error(), "choose another run.dir, or change who may write there"}
		}
	}
	f := disk(checkpoints, needed)
	if one > 0 {
		f.Found += "; a checkpoint has " + memory.Size(one)
	}
	return f
}

// checkpointBytes returns the size of one checkpoint of all agents, and the largest size of all checkpoints at one time.
// The disk holds the newest run.keep checkpoints, the best, the checkpoint of the cold start, and the one in progress; a
// run that writes few checkpoints has fewer. An untrained agent has a single file for all of these, and a second one while a
// checkpoint is in progress. A stopped cold start has the weights and moments, in fp32, until the first checkpoint is complete.
func checkpointBytes(cfg *config.Config, needs []memory.Need) (one, most int64) {
	coldStarts := slices.ContainsFunc(cfg.Agents, func(a config.Agent) bool { return cfg.ColdStarts(&a) })
	checkpoints := min(checkpointsWritten(cfg), cfg.Run.Steps)
	if coldStarts {
		checkpoints++ // the checkpoint of step 0
	}
	checkpoints = min(int64(cfg.Run.Keep)+3, checkpoints)
	stopped := int64(0)
	for _, n := range needs {
		one += n.Files
		a := cfg.Agent(n.Agent)
		if cfg.Learns(a) {
			most += checkpoints * n.Files
		} else {
			most += min(2, checkpoints) * n.Files
		}
		if cfg.ColdStarts(a) {
			stopped += n.Of(memory.Snapshot)
		}
	}
	return one, max(most, stopped+one)
}

// checkpointsWritten returns the largest number of checkpoints that a run writes after step 0 if it is stopped once. It writes them at
// multiples of run.checkpoint_every, after evaluations, at the stop and at the end.
func checkpointsWritten(cfg *config.Config) int64 {
	n := int64(2)
	for _, every := range []int64{cfg.Run.CheckpointEvery, cfg.Eval.Every} {
		if every > 0 {
			n += cfg.Run.Steps / every
		}
	}
	return n
}

// sizeOf returns the bytes of all files in a folder. A file with several names counts once. The result is 0 if the folder
// does not exist.
func sizeOf(dir string) (size int64) {
	seen := map[uint64]bool{}
	if at, err := filepath.EvalSymlinks(dir); err == nil {
		dir = at // WalkDir does not follow a link
	}
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return nil
		}
		if stat, ok := info.Sys().(*syscall.Stat_t); ok {
			if seen[stat.Ino] {
				return nil
			}
			seen[stat.Ino] = true
		}
		size += info.Size()
		return nil
	})
	return size
}

// available returns the free bytes of each device. Devices whose free memory is unknown are absent.
func available() map[string]int64 {
	out := map[string]int64{}
	if m, err := cgroup.HostMemory(); err == nil {
		out["cpu"] = m.Available
	}
	for index, free := range listGPUs().free {
		out[fmt.Sprintf("cuda:%d", index)] = free
	}
	return out
}
