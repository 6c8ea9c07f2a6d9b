package assemble

import (
	"os"
	"slices"

	"github.com/mgrpo/mgrpo/trainer/agent/gateway"
	"github.com/mgrpo/mgrpo/trainer/config"
)

// CheckFiles checks that the files and programs exist which an agent's worker opens only after it
// has loaded its weights. These are prompt, corpora of tools, demonstrations, and the program
// that holds the conversations. The error names all that are missing.
func CheckFiles(cfg *config.Config, a *config.Agent) error {
	var missing config.Errors
	exists := func(key string, path config.Path) {
		if path == "" {
			return
		}
		if _, err := os.Stat(cfg.Resolve(path)); err != nil {
			missing = append(missing, cfg.Fault(key, err))
		}
	}
	exists("agents."+a.Name+".prompt", a.Prompt)
	for _, name := range cfg.ToolsOf(a) {
		if search, ok := cfg.Tool(name).(*config.Search); ok {
			exists("tools."+name+".corpus", search.Corpus)
		}
	}
	if from := cfg.ColdStart.Demonstrations; cfg.ColdStarts(a) && !slices.Contains([]config.Path{"task", "parts"}, from) {
		exists("cold_start.demonstrations", from)
	}
	if p := cfg.Task.Program; a.IsMain() && len(p.Command) > 0 {
		if _, err := gateway.NewPrograms(gateway.ProgramOptions{Command: p.Command, Dir: cfg.Resolve(p.Dir)}); err != nil {
			missing = append(missing, cfg.Fault("task.program.command", err))
		}
	}
	return missing.Err()
}
