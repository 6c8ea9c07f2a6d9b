package doctor

import (
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/mgrpo/mgrpo/trainer"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/weights"
)

// Preflight prints the memory plan of the agents that are to run in this process (nil: all) and refuses
// what does not fit, before anything is allocated.
func Preflight(w io.Writer, cfg *config.Config, agents []string) error {
	plans, err := trainer.MemoryPlan(cfg, agents)
	if err != nil {
		return err
	}
	writePlans(w, plans)
	return fits(cfg, plans, available())
}

// configured looks at what the configuration needs.
func configured(cfg *config.Config) []Finding {
	var out []Finding
	if _, err := trainer.OpenTask(cfg); err != nil {
		out = append(out, Finding{Fail, "task", oneLine(err), "correct the task section"})
	} else {
		out = append(out, Finding{OK, "task", cfg.Task.Kind, ""})
	}
	if chats := cfg.ColdStart.Demonstrations; chats != "none" && chats != "task" {
		f, err := os.Open(cfg.Resolve(chats))
		if err != nil {
			out = append(out, Finding{Fail, "demonstrations", oneLine(err), "correct cold_start.demonstrations"})
		} else {
			f.Close()
		}
	}
	plans, err := trainer.MemoryPlan(cfg, nil)
	if err != nil {
		return append(out, Finding{Fail, "models", oneLine(err), "correct the agent's model"}, disk(trainer.RunDir(cfg), 0))
	}
	checkpoints := int64(0)
	for _, p := range plans {
		checkpoints += p.Checkpoint
		out = append(out, Finding{OK, "plan", p.Agent + " on " + p.Device + ": " + parts(p), ""})
	}
	if err := fits(cfg, plans, available()); err != nil {
		out = append(out, Finding{Fail, "memory", err.Error(), ""})
	}
	// The newest run.keep, the best, and the one being written.
	return append(out, disk(trainer.RunDir(cfg), int64(cfg.Run.Keep+2)*checkpoints))
}

// available is free memory by device, in bytes; a device that is not known is absent.
func available() map[string]int64 {
	out := map[string]int64{}
	if m, err := HostMemory("/"); err == nil {
		out["cpu"] = m.Available
	}
	for index, free := range seeGPUs().free {
		out[fmt.Sprintf("cuda:%d", index)] = free
	}
	return out
}

func deviceOf(p trainer.AgentPlan) string {
	if index, ok := gpuIndex(p.Device); ok {
		return fmt.Sprintf("cuda:%d", index)
	}
	return p.Device
}

// fits compares, device by device, what all agents there need together with what is free. The error names
// the key of the agent's part that is largest among those a key makes smaller.
func fits(cfg *config.Config, plans []trainer.AgentPlan, free map[string]int64) error {
	byDevice := map[string][]trainer.AgentPlan{}
	var devices []string
	add := func(d string, p trainer.AgentPlan) {
		if byDevice[d] == nil {
			devices = append(devices, d)
		}
		byDevice[d] = append(byDevice[d], p)
	}
	for _, p := range plans {
		d := deviceOf(p)
		add(d, p)
		if d != "cpu" && p.Snapshot > 0 { // the host's memory all the same
			add("cpu", trainer.AgentPlan{Agent: p.Agent, Device: "cpu", MemoryPlan: weights.MemoryPlan{Snapshot: p.Snapshot, Total: p.Snapshot}})
		}
	}
	for _, d := range devices {
		here, known := free[d]
		var names []string
		need := int64(0)
		for _, p := range byDevice[d] {
			names = append(names, p.Agent)
			need += p.Total
		}
		if known && need > here {
			return fmt.Errorf("%s on %s: %s of memory needed, %s available: %s",
				strings.Join(names, " and "), d, size(need), size(here), remedy(cfg, byDevice[d], need-here))
		}
	}
	return nil
}

// remedy says which key to lower.
func remedy(cfg *config.Config, plans []trainer.AgentPlan, excess int64) string {
	levers := trainer.Levers(cfg, plans)
	if len(levers) == 0 {
		return "copies from which checkpoints are written; use a smaller model, or train: false"
	}
	l := levers[0]
	text := fmt.Sprintf("lower %s (%d; %s %s)", l.Key, l.Value, l.What, size(l.Bytes))
	if l.What == "KV cache" {
		text += " or " + strings.TrimSuffix(l.Key, "slots") + "context"
	}
	if l.Bytes < excess {
		text += "; that alone will not do: use a smaller model, train: false, or another device"
	}
	return text
}

// parts lists what an agent's memory goes to.
func parts(p trainer.AgentPlan) string {
	var out []string
	for _, c := range columns(p) {
		if c.bytes > 0 {
			out = append(out, c.name+" "+size(c.bytes))
		}
	}
	return strings.Join(out, ", ")
}

type column struct {
	name  string
	bytes int64
}

func columns(p trainer.AgentPlan) []column {
	return []column{{"weights", p.Weights}, {"reference", p.Reference}, {"gradients", p.Gradients}, {"optimizer", p.Optimizer},
		{"KV cache", p.KVCache}, {"activations", p.Activations}, {"copy", p.Snapshot}, {"total", p.Total}}
}

// writePlans prints a row an agent. A part that no agent has is left out.
func writePlans(w io.Writer, plans []trainer.AgentPlan) {
	used := map[string]bool{}
	for _, p := range plans {
		for _, c := range columns(p) {
			used[c.name] = used[c.name] || c.bytes > 0
		}
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	head := "memory\t"
	for _, c := range columns(trainer.AgentPlan{}) {
		if used[c.name] {
			head += strings.TrimSuffix(c.name, "s") + "\t"
		}
	}
	fmt.Fprintln(t, head)
	for _, p := range plans {
		fmt.Fprintf(t, "%.14s\t", p.Agent)
		for _, c := range columns(p) {
			if used[c.name] {
				fmt.Fprint(t, short(c.bytes), "\t")
			}
		}
		fmt.Fprintln(t)
	}
	t.Flush()
}

// short is size without a space or a unit's second letter: 12.3M.
func short(bytes int64) string {
	text, unit, _ := strings.Cut(size(bytes), " ")
	return text + strings.TrimSuffix(unit, "iB")
}
