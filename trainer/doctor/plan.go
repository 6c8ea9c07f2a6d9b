package doctor

import (
	"fmt"
	"io"
	"os"

	"github.com/mgrpo/mgrpo/trainer/assemble"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/memory"
	"github.com/mgrpo/mgrpo/trainer/task"
)

// Preflight prints the memory plan of the agents that are to run in this process (nil: all) and refuses
// what does not fit, before anything is allocated.
func Preflight(w io.Writer, cfg *config.Config, agents []string) error {
	plans, err := assemble.MemoryPlans(cfg, agents)
	if err != nil {
		return err
	}
	free := available()
	memory.Write(w, plans, free)
	return memory.Fits(plans, free)
}

// configured looks at what the configuration needs.
func configured(cfg *config.Config) []Finding {
	var out []Finding
	if t, err := assemble.Task(cfg); err != nil {
		out = append(out, Finding{Fail, "task", oneLine(err), "correct the task section"})
	} else {
		task.Close(t)
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
	plans, err := assemble.MemoryPlans(cfg, nil)
	if err != nil {
		return append(out, Finding{Fail, "models", oneLine(err), "correct the agent's model"}, disk(cfg.RunDir(), 0))
	}
	files := int64(0)
	for _, p := range plans {
		files += p.Files
		out = append(out, Finding{OK, "plan", p.String(), ""})
	}
	free := available()
	for _, s := range memory.Sums(plans, free) {
		out = append(out, Finding{OK, "in all", s.String(), ""})
	}
	if err := memory.Fits(plans, free); err != nil {
		out = append(out, Finding{Fail, "memory", oneLine(err), ""})
	}
	// The newest run.keep, the best, and the one being written.
	return append(out, disk(cfg.RunDir(), int64(cfg.Run.Keep+2)*files))
}

// available is free memory by device, in bytes; a device that is not known is absent.
func available() map[string]int64 {
	out := map[string]int64{}
	if m, err := memory.Host("/"); err == nil {
		out["cpu"] = m.Available
	}
	for index, free := range seeGPUs().free {
		out[fmt.Sprintf("cuda:%d", index)] = free
	}
	return out
}
