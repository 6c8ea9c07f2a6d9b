package config_test

import (
	"fmt"

	"github.com/mgrpo/mgrpo/trainer/config"
)

// Parses a configuration, with an override as on the command line.
func ExampleParse() {
	cfg, err := config.Parse("team.yaml", []byte(`
run: {name: rivers}
agents:
  planner: {role: main, model: models/planner}
  researcher: {role: sub, model: models/researcher}
`), []string{"run.steps=12"})
	if err != nil {
		panic(err)
	}
	fmt.Println(cfg.AgentNames(), cfg.Run.Steps, cfg.GRPO.Rollouts)
	// Output: [planner researcher] 12 8
}
