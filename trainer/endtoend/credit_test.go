package endtoend

import (
	"math"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer"
	"github.com/mgrpo/mgrpo/trainer/agent"
)

// TestRemovalCredit trains one step with grpo.credit: removal. A sub-agent's reward then implies the credit of its call. A call whose
// answer was read as unknown has credit 0, because the main agent reads the same text without it. Other calls have
// different credits within a rollout, which the correctness of the answer cannot give.
func TestRemovalCredit(t *testing.T) {
	dir := t.TempDir()
	seen := mustTrain(t, load(t, dir, "run.steps=1", "eval.every=0", "eval.before=false", "eval.queries=1", "grpo.credit=removal",
		"task.queries_per_step=24", "task.research.hops=2", "cold_start.queries=1024", "agents.planner.cold_start.steps=200", "agents.researcher.cold_start.steps=200"), trainer.TrainOptions{})
	correct, read := map[string]float64{}, map[string][]string{} // by rollout; read: the results that the planner read
	for _, l := range readLines(t, filepath.Join(dir, "trajectories", "step-0", "planner.jsonl")) {
		if !l.FormatValid {
			continue
		}
		correct[l.ID] = (*l.Reward - 0.1) / 0.9
		for _, turn := range l.Turns {
			if turn.Role == agent.RoleObserved {
				read[l.ID] = append(read[l.ID], turn.Text)
			}
		}
	}
	sum, credits := 0., 0
	byRollout := map[string]map[float64]bool{}
	unknown, whole := 0, true
	for _, l := range readLines(t, filepath.Join(dir, "trajectories", "step-0", "researcher.jsonl")) {
		rollout, _, _ := strings.Cut(l.ID, "/researcher/")
		c, answered := correct[rollout]
		if !l.FormatValid {
			whole = whole && !answered // its credit is not in its reward
			continue
		}
		credit := math.Round((*l.Reward-0.1-0.5**l.Expert)/0.4*1e6) / 1e6
		if !answered {
			if credit != 0 {
				t.Errorf("%s has credit %v, and its rollout has no answer", l.ID, credit)
			}
			continue
		}
		if credit < c-1-1e-6 || credit > c+1e-6 {
			t.Errorf("%s has credit %v in a rollout of correctness %v", l.ID, credit, c)
		}
		if strings.Contains(read[rollout][l.Invocation], "unknown") {
			if unknown++; credit != 0 {
				t.Errorf("%s has credit %v, but the planner read %q", l.ID, credit, read[rollout][l.Invocation])
			}
		}
		sum, credits = sum+credit, credits+1
		if byRollout[rollout] == nil {
			byRollout[rollout] = map[float64]bool{}
		}
		byRollout[rollout][credit] = true
	}
	different := 0
	for _, c := range byRollout {
		if len(c) > 1 {
			different++
		}
	}
	t.Logf("%d credits, mean %v; %d calls read as unknown; %d rollouts with different credits", credits, sum/float64(credits), unknown, different)
	if credits == 0 || unknown == 0 || different == 0 {
		t.Errorf("%d credits, %d calls read as unknown, %d rollouts with different credits: too few", credits, unknown, different)
	}
	if n := seen.find(t, "step", 1, "planner").Values["removal_tokens"]; n < float64(credits) {
		t.Errorf("%v tokens of answers without a call for %d credits", n, credits)
	}
	if mean := seen.find(t, "step", 1, "researcher").Values["credit_mean"]; whole && math.Abs(mean-sum/float64(credits)) > 1e-5 {
		t.Errorf("credit_mean is %v, the rewards imply %v", mean, sum/float64(credits))
	}
}
