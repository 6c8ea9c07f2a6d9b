package main

import "github.com/mgrpo/mgrpo/bench/measure"

const smallProducts = "At 16 rows sampling is bound by arithmetic, and HF generate takes some three times the floor: the target, four times as fast as HF, is " +
	"more than the floor allows. Two thirds of our time are matrix products of few rows, a twelfth is attention, and a fifth is work around " +
	"them that runs on one thread, a fifth of which is cgo looking at pointers."

const halfWeights = "This machine has no bf16 instructions: half the bytes of weights save nothing where 16 rows are bound by arithmetic, " +
	"and each weight is widened once a pass."

const halfProducts = "This machine has no bf16 instructions, and LibTorch's product in bf16 is a hundred times as slow as float32's, in which ours are therefore made. " +
	"PyTorch in float32 takes some 1.6 times the floor: the target, 2.2 times as fast as PyTorch, is more than products in float32 allow."

const smallGroups = "Groups of some eight rewards cost three divisions, a root and the rounding to and from float64 each: 40 cycles a group and core in the cache, " +
	"15 of them for the group and the rest for its members, seven for every four members, padding included. A copy of the same bytes takes up to half of the time."

const smallStep = "The update takes about its floor, sampling nearly twice its own: of its time 45 % are matrix products of few rows, 14 % attention, " +
	"a quarter is Go's and LibTorch's work around small operations on one thread, and a tenth is waiting for the end of a parallel region."

const oneRedis = "An invocation is four commands, three of them scripts, and two announcements: 95 µs of Redis' processor and 145 µs of its clients'. " +
	"On two cores that both share no more than 8,300/s are possible, and while Redis waits for the disk it answers nobody. Invocations beyond that rate wait in a queue. " +
	"5,000/s are answered as they come, half of them within 30 ms; the slowest hundredth wait while a phase changes, for all 999 workers at once."

const wholeStep = "A step took as long, 13.5 and 13.3 s, in two runs of one night; the large product that floors assume ran at 114 GFLOP/s in the first, " +
	"which makes 83 % of the floor, and at 142 in the second, which is shown here. Products of 16 rows and of 576 columns did not become faster with it."

// reasons are why targets were missed, by "suite name" of the row and the kind of target; written by hand from profiles.
var reasons = map[string]map[measure.Kind]string{
	"kernels group_advantage":              {measure.Faster: smallGroups},
	"kernels linear_policy_loss, bfloat16": {measure.Faster: halfProducts},
	"rollout smollm2":                      {measure.Faster: smallProducts, measure.Floor: smallProducts},
	"rollout smollm2-bf16":                 {measure.Faster: halfWeights, measure.Floor: halfWeights},
	"step smollm2":                         {measure.Floor: wholeStep},
	"step small":                           {measure.Faster: smallStep},
}

// reason says why a target was missed on a CPU; there are no reasons for a GPU yet.
func (m *machine) reason(r measure.Row, t measure.Target) string {
	if m.is().GPU != "" {
		return ""
	}
	return reasons[r.Suite+" "+r.Name][t.Kind]
}
