package mgrpo

// Member is one trajectory of a group.
type Member struct {
	Query      string
	Rollout    int // number k of the rollout
	Invocation int // order in which the rollout issued its calls; 0 for the main agent
	Reward     float64
	Weight     float64 // 0: dropped by the alignment
}

// Group is a set of trajectories that are compared with each other. For the main agent it is
// the K rollouts of a query. For a sub-agent it is all aligned invocations for a query.
type Group struct {
	Query, Agent string // Query is "" if the group spans all queries of a step
	Members      []Member
	Rollouts     int     // K': rollouts that contribute rows
	WeightSum    float64 // W
}

// Rewards returns the members' rewards, in their order.
func (g Group) Rewards() []float64 {
	return column(g.Members, func(m Member) float64 { return m.Reward })
}

// Weights returns the members' weights, in their order.
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

// RolloutRewards holds the rewards of one agent in one rollout, in the order in which the calls were issued. The
// caller has already removed rollouts without a main reward or with a lost sub-trajectory.
type RolloutRewards struct {
	Rollout int
	Rewards []float64
}

// MainGroup returns the main agent's group: one trajectory per rollout, with weight 1 (equations 9, 10).
func MainGroup(query, agent string, rollouts []RolloutRewards) Group {
	return Align{Mode: AlignNone, D: 1}.Group(0, query, agent, rollouts)
}

// Group returns the group of one sub-agent (equations 11 to 13): all its invocations in all rollouts of the query,
// weighted by the alignment. A rollout without an invocation adds no rows.
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

// Pool joins the groups of all queries of a step into one group, which compares every invocation of a sub-agent
// with all others. The paper groups by query (equations 12, 13); pooling is a baseline for comparison.
func Pool(agent string, groups []Group) Group {
	pool := Group{Agent: agent}
	for _, g := range groups {
		pool.Members = append(pool.Members, g.Members...)
		pool.Rollouts += g.Rollouts
		pool.WeightSum += g.WeightSum
	}
	return pool
}
