package oracle

import (
	"fmt"
	"slices"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/golden"
	"github.com/mgrpo/mgrpo/trainer/golden/algorithm"
	"github.com/mgrpo/mgrpo/trainer/mgrpo"
)

type rewardInput struct {
	Format          bool
	Correct, Expert *mgrpo.Number
}

type endToEnd struct {
	RunSeed uint64 `json:"run_seed,string"`
	Align   map[string]int
	Queries []struct {
		Query    string
		Rollouts []struct {
			Main rewardInput
			Sub  map[string][]rewardInput
		}
	}
	Expect []struct {
		Query         string
		RewardMain    []float64       `json:"reward_main"`
		AdvantageMain algorithm.Group `json:"advantage_main"`
		Sub           map[string]struct {
			Reward            [][]float64
			Multiplicity      [][]int
			AdvantageDraw     algorithm.Group `json:"advantage_draw"`
			AdvantageBalanced algorithm.Group `json:"advantage_balanced"`
		}
	}
	Policies map[string]struct {
		algorithm.Head
		Trajectories []struct {
			Query               string
			Rollout, Invocation int
		}
		Cases []struct {
			Config mgrpo.Objective
			Expect algorithm.HeadLoss
		}
	}
}

// From reward components to the gradient of the logits, for a main agent and two sub-agents.
func TestEndToEndGolden(t *testing.T) {
	var f endToEnd
	golden.Read(t, "mgrpo", "end_to_end.json", &f)
	weights := mgrpo.RewardWeights{Main: mgrpo.MainWeights{Format: 0.1, Correct: 0.9}, Sub: mgrpo.SubWeights{Format: 0.1, Main: 0.4, Expert: 0.5}}
	rows := map[string][]mgrpo.Member{} // of every policy, in the order of its batch
	advantages := map[string][]float64{}
	collect := func(agent, what string, g mgrpo.Group, want algorithm.Group) {
		got, err := Normalise(mgrpo.DefaultConvention(), []mgrpo.RewardGroup{{Rewards: g.Rewards(), Weights: g.Weights()}})
		if err != nil {
			t.Fatal(err)
		}
		compareGroup(t, what, got[0], want)
		rows[agent] = append(rows[agent], g.Members...)
		advantages[agent] = append(advantages[agent], got[0].Advantage...)
	}
	for i, q := range f.Queries {
		want := f.Expect[i]
		main := make([]mgrpo.RolloutRewards, len(q.Rollouts))
		sub := map[string][]mgrpo.RolloutRewards{}
		for k, r := range q.Rollouts {
			reward, err := weights.MainReward(r.Main.Format, (*float64)(r.Main.Correct))
			if err != nil {
				t.Fatal(err)
			}
			golden.Near(t, "main reward", reward, want.RewardMain[k], 1e-14)
			main[k] = mgrpo.RolloutRewards{Rollout: k, Rewards: []float64{reward}}
			for agent := range f.Align {
				rewards := []float64{}
				for n, in := range r.Sub[agent] {
					reward, err := weights.SubReward(in.Format, r.Main.Format, (*float64)(r.Main.Correct), (*float64)(in.Expert))
					if err != nil {
						t.Fatal(err)
					}
					golden.Near(t, "sub reward", reward, want.Sub[agent].Reward[k][n], 1e-14)
					rewards = append(rewards, reward)
				}
				sub[agent] = append(sub[agent], mgrpo.RolloutRewards{Rollout: k, Rewards: rewards})
			}
		}
		collect("main", q.Query+" main", mgrpo.MainGroup(q.Query, "main", main), want.AdvantageMain)
		for agent, d := range f.Align {
			what := fmt.Sprintf("%s %s", q.Query, agent)
			g := mgrpo.Align{Mode: mgrpo.AlignDraw, D: d}.Group(f.RunSeed, q.Query, agent, sub[agent])
			if m := floats(slices.Concat(want.Sub[agent].Multiplicity...)); !slices.Equal(g.Weights(), m) {
				t.Errorf("%s: multiplicity %v, want %v", what, g.Weights(), m)
			}
			collect(agent, what, g, want.Sub[agent].AdvantageDraw)
			balanced := mgrpo.Align{Mode: mgrpo.AlignBalanced, D: d}.Group(f.RunSeed, q.Query, agent, sub[agent])
			got, err := Normalise(mgrpo.DefaultConvention(), []mgrpo.RewardGroup{{Rewards: balanced.Rewards(), Weights: balanced.Weights()}})
			if err != nil {
				t.Fatal(err)
			}
			compareGroup(t, what+" balanced", got[0], want.Sub[agent].AdvantageBalanced)
		}
	}
	cases := len(f.Queries)
	for agent, p := range f.Policies {
		for j := range p.Trajectories { // the policy is trained with our weights and advantages, not the file's
			m := rows[agent][j]
			if m.Rollout != p.Trajectories[j].Rollout || m.Invocation != p.Trajectories[j].Invocation {
				t.Fatalf("%s: row %d is %+v, want %+v", agent, j, m, p.Trajectories[j])
			}
			p.Batch.Weight[j], p.Batch.Advantage[j] = mgrpo.Number(m.Weight), mgrpo.Number(advantages[agent][j])
		}
		for i, c := range p.Cases {
			what := fmt.Sprintf("%s, config %d", agent, i)
			p.Config, p.Expect = c.Config, c.Expect
			compareHead(t, what, p.Head)
			loss, _, err := lossFromLogits(p.Head)
			compareLoss(t, what, loss, err, c.Expect.Loss, 1e-12)
			cases++
		}
	}
	golden.Count("mgrpo/end_to_end", cases)
}

func floats(ints []int) []float64 {
	out := make([]float64, len(ints))
	for i, n := range ints {
		out[i] = float64(n)
	}
	return out
}
