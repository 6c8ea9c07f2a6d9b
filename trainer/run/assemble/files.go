package assemble

import (
	"maps"
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
	files := agentFiles(cfg, a)
	for _, key := range slices.Sorted(maps.Keys(files)) {
		if files[key] == "" {
			continue
		}
		if _, err := os.Stat(files[key]); err != nil {
			missing = append(missing, cfg.Fault(key, err))
		}
	}
	if p := cfg.Task.Program; a.IsMain() && len(p.Command) > 0 {
		if _, err := gateway.NewPrograms(gateway.ProgramOptions{Command: p.Command, Dir: cfg.Resolve(p.Dir)}); err != nil {
			missing = append(missing, cfg.Fault("task.program.command", err))
		}
	}
	return missing.Err()
}

// agentFiles returns the paths of the files that an agent reads in addition to its model, by key: its prompt, the corpora of its tools,
// and the demonstrations of its cold start. A path that is not configured may be "".
func agentFiles(cfg *config.Config, a *config.Agent) map[string]string {
	files := map[string]string{"agents." + a.Name + ".prompt": cfg.Resolve(a.Prompt)}
	for _, name := range cfg.ToolsOf(a) {
		if search, ok := cfg.Tool(name).(*config.Search); ok {
			files["tools."+name+".corpus"] = cfg.Resolve(search.Corpus)
		}
	}
	if from := cfg.ColdStart.Demonstrations; cfg.ColdStarts(a) && !slices.Contains([]config.Path{"task", "parts"}, from) {
		files["cold_start.demonstrations"] = cfg.Resolve(from)
	}
	return files
}
