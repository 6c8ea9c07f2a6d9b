package check

import (
	"bufio"
	"encoding/json"
	"os"
	"slices"
)

// Kill is a line of the list of kills.
type Kill struct {
	Target   string  `json:"target"` // agent, or redis
	Phase    string  `json:"phase"`  // the step's phase at that moment
	Point    string  `json:"point"`  // last failpoint before
	Exact    bool    `json:"exact"`  // it killed itself at that failpoint
	Progress int     `json:"progress"`
	Seconds  float64 `json:"seconds"` // from the beginning of the run
}

// MinimumPhases is the number of phases of a step in which each target must have been killed.
const MinimumPhases = 3

// Phases lists the phases of a step. Kills while a target starts or joins do not count.
var Phases = []string{"rollout", "agree", "learn", "commit", "checkpoint"}

// coverage marks a run as void if it had too few kills, or a target was killed in too few phases.
func (f *Findings) coverage(s Settings) {
	file, err := os.Open(s.Kills)
	if err != nil {
		f.void("%v", err)
		return
	}
	defer file.Close()
	hit, all := map[string][]string{}, 0
	for in := bufio.NewScanner(file); in.Scan(); all++ {
		var k Kill
		if err := json.Unmarshal(in.Bytes(), &k); err != nil {
			f.void("%s: %v", s.Kills, err)
			return
		}
		if slices.Contains(Phases, k.Phase) && !slices.Contains(hit[k.Target], k.Phase) {
			hit[k.Target] = append(hit[k.Target], k.Phase)
		}
	}
	if all < s.Minimum {
		f.void("%d kills where %d were asked for", all, s.Minimum)
	}
	targets := append(slices.Clone(s.Agents), "redis")
	for target := range hit { // processes of further devices
		if !slices.Contains(targets, target) {
			targets = append(targets, target)
		}
	}
	for _, target := range targets {
		if len(hit[target]) < MinimumPhases {
			f.void("%s was killed in %d phases of a step, %v; %d are needed", target, len(hit[target]), hit[target], MinimumPhases)
		}
	}
}
