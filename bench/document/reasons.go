package main

import "github.com/mgrpo/mgrpo/bench/measure"

const smallProducts = "The floor is that of a large product, which AVX-512 makes three times as fast as AVX2 did; products of 16 rows, of which sampling consists, " +
	"reach a third of its rate (rows linear), since each of their weights comes from memory for 16 rows alone. HF generate takes four times the floor: " +
	"to be four times as fast as HF is to be at the floor."

const halfWeights = "LibTorch multiplies bf16 in the processor's matrix unit (AMX), which our kernels do not use yet: they widen the weights to float32, so that " +
	"products of 16 rows take about as long as in float32. The floor is that of the matrix unit."

const lossFloor = "Within the spread of the ceiling itself, which was between 310 and 375 GFLOP/s in the runs of this machine."

const smallGroups = "Groups of some eight rewards cost three divisions, a root and the rounding to and from float64 each; a copy of the same bytes takes a third of the time."

const smallStep = "The update takes about its floor, sampling some twice its own: products of few rows, and Go's and LibTorch's work around small operations on one thread."

const oneRedis = "All invocations are answered as they come, half of them within a hundredth of a second. The slowest hundredth wait while a phase changes, " +
	"for all 999 workers at once, on two cores that Redis and all workers share."

const wholeStep = "The update is at its floor, sampling is not: products of 16 rows reach a third of the rate that the floor assumes."

// reasons are why targets were missed, by "suite name" of the row and the kind of target; written by hand from profiles.
var reasons = map[string]map[measure.Kind]string{
	"kernels group_advantage":    {measure.Faster: smallGroups},
	"kernels linear_policy_loss": {measure.Floor: lossFloor},
	"rollout smollm2":            {measure.Faster: smallProducts, measure.Floor: smallProducts},
	"rollout smollm2-bf16":       {measure.Faster: halfWeights, measure.Floor: halfWeights},
	"step smollm2":               {measure.Floor: wholeStep},
	"step small":                 {measure.Faster: smallStep},
}

// reason says why a target was missed on a CPU; there are no reasons for a GPU yet.
func (m *machine) reason(r measure.Row, t measure.Target) string {
	if m.is().GPU != "" {
		return ""
	}
	return reasons[r.Suite+" "+r.Name][t.Kind]
}
