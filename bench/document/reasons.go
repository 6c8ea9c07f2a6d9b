package main

import "github.com/mgrpo/mgrpo/bench/measure"

const smallProducts = "The floor is that of a large product, which AVX-512 makes three times as fast as AVX2 did; products of 16 rows, of which sampling consists, " +
	"reach a third of its rate (rows linear), since each of their weights comes from memory for 16 rows alone. HF generate takes four times the floor: " +
	"four times as fast as HF would equal the floor."

const halfWeights = "In the matrix unit (AMX) a row of ours is two rows of bf16, which keeps its activations at 16 bits where HF keeps 8; attention, norms and " +
	"the rest of a pass are float32 on both sides and take the larger part of the time. With avx512_bf16 alone activations are rounded to bf16, without it weights are widened to float32."

const roundedFactors = "Products take half of an update whose factors are rounded; attention, norms, AdamW and the loss are as in float32."

const mixtureDecode = "Both read nearly all experts for 16 rows, and HF is within 2.2 times the floor in float32: to be three times as fast as HF is to be beyond it."

const mixtureUpdate = "Products of float32 are LibTorch's on both sides and most of the time; what HF loses in gathering rows is the difference."

const manyRows = "From some four rows on, products are bound by instructions: bf16 is multiplied in the matrix unit (AMX), while blocks are widened to float32. " +
	"They save memory there, not time."

const twoAgents = "16 rows against 8: products of float32 are bound by instructions rather than by reading weights from some ten rows on (row linear), so a batch " +
	"twice as large saves a third and not half."

const lossFloor = "The ceiling is one measurement, and differs from one to the next by a fifth and more."

const smallGroups = "Groups of some eight rewards cost three divisions, a root and the rounding to and from float64 each; a copy of the same bytes takes a third of the time."

const smallStep = "The update takes about its floor, sampling some twice its own: products of few rows, and Go's and LibTorch's work around small operations on one thread."

const oneRedis = "All invocations are answered as they come, half of them within a hundredth of a second. The slowest hundredth wait while a phase changes, " +
	"for all 999 workers at once, on two cores that Redis and all workers share."

const wholeStep = "The update is at its floor, sampling is not: products of 16 rows reach a third of the rate that the floor assumes."

const adaptedStep = "An update is 1.26 times as fast (learner), but sampling is half of a full step and its adapters stay unmerged: two more products of few rows and small " +
	"inner dimension for each of 210 matrices, a token."

const adaptedMemory = "The peak is that of the base, of the sampler's cache and of activations; what a full step has more are gradients and moments."

// reasons are why targets were missed, by "suite name" of the row and the kind of target; written by hand from profiles.
var reasons = map[string]map[measure.Kind]string{
	"kernels group_advantage":    {measure.Faster: smallGroups},
	"kernels linear_policy_loss": {measure.Floor: lossFloor},
	"rollout smollm2":            {measure.Faster: smallProducts, measure.Floor: smallProducts},
	"rollout smollm2-bf16":       {measure.Faster: halfWeights, measure.Floor: halfWeights},
	"rollout mixture":            {measure.Faster: mixtureDecode},
	"rollout mixture-bf16":       {measure.Faster: halfWeights},
	"rollout two-agents":         {measure.Faster: twoAgents},
	"learner smollm2-bf16":       {measure.Faster: roundedFactors},
	"quantised Q8_0-16":          {measure.Faster: manyRows},
	"quantised Q4_K-16":          {measure.Faster: manyRows},
	"quantised Q4_K-4":           {measure.Faster: manyRows},
	"learner mixture":            {measure.Faster: mixtureUpdate},
	"step smollm2":               {measure.Floor: wholeStep},
	"step small":                 {measure.Faster: smallStep},
	"step smollm2-lora":          {measure.Faster: adaptedStep, measure.Memory: adaptedMemory},
}

// reason says why a target was missed on a CPU; there are no reasons for a GPU yet.
func (m *machine) reason(r measure.Row, t measure.Target) string {
	if m.is().GPU != "" {
		return ""
	}
	return reasons[r.Suite+" "+r.Name][t.Kind]
}
