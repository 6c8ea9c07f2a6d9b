package mgrpo

// Member is one trajectory of a group.
type Member struct {
	Query      string
	Rollout    int // the rollout's own number k
	Invocation int // order in which the rollout issued its calls; 0 for the main agent
	Reward     float64
	Weight     float64 // 0: dropped by the alignment
}

// Group holds the trajectories that are compared with each other: the K rollouts of a query for the main
// agent, all aligned invocations of one sub-agent kind for the same query otherwise.
type Group struct {
	Query, Agent string // Query "": the group spans all queries of a step
	Members      []Member
	Rollouts     int     // K': rollouts that contribute rows
	WeightSum    float64 // W
}

// Empty reports a group without rows: no rollout called this agent. It is counted, not an error.
func (g Group) Empty() bool { return g.Rollouts == 0 }

// Rewards and Weights are the members' columns, as a normaliser takes them.
func (g Group) Rewards() []float64 {
	return column(g.Members, func(m Member) float64 { return m.Reward })
}

// Weights of the members, in their order.
func (g Group) Weights() []float64 {
	return column(g.Members, func(m Member) float64 { return m.Weight })
}

func column(members []Member, value func(Member) float64) []float64 {
	out := make([]float64, len(members))
	for i, m := range members {
		out[i] = value(m)
	}
	return out
}

// RolloutRewards are the rewards of one agent kind in one rollout, in the order of issue. Rollouts
// without a final main reward or with a lost sub-trajectory must have been removed before.
type RolloutRewards struct {
	Rollout int
	Rewards []float64
}

// MainGroup forms the main agent's group: one trajectory a rollout, weight 1 (equations 9, 10).
func MainGroup(query, agent string, rollouts []RolloutRewards) Group {
	return Align{Mode: AlignNone, D: 1}.Group(0, query, agent, rollouts)
}

// Group forms the group of one sub-agent kind (equations 11 to 13): all invocations of all rollouts of
// the query together, weighted by the alignment. A rollout with no invocation adds no rows.
func (a Align) Group(runSeed uint64, query, agent string, rollouts []RolloutRewards) Group {
	g := Group{Query: query, Agent: agent}
	for _, r := range rollouts {
		if len(r.Rewards) == 0 {
			continue
		}
		g.Rollouts++
		weights := a.Weights(runSeed, query, r.Rollout, agent, len(r.Rewards))
		for i, reward := range r.Rewards {
			g.Members = append(g.Members, Member{Query: query, Rollout: r.Rollout, Invocation: i, Reward: reward, Weight: weights[i]})
			g.WeightSum += weights[i]
		}
	}
	return g
}

// Pool makes one group of the groups of all queries of a step: every invocation of a sub-agent kind is then
// compared with all others. This is not the paper's group (equations 12, 13), but a baseline to compare it with.
func Pool(agent string, groups []Group) Group {
	pool := Group{Agent: agent}
	for _, g := range groups {
		pool.Members = append(pool.Members, g.Members...)
		pool.Rollouts += g.Rollouts
		pool.WeightSum += g.WeightSum
	}
	return pool
}
