package main

import "github.com/mgrpo/mgrpo/bench/measure"

const smallProducts = "The floor is computed from a large product, which is three times as fast with AVX-512 as with AVX2. Sampling consists of " +
	"products of 16 rows. These reach a third of that rate (rows linear), because each weight is read from memory for only 16 rows. " +
	"HF generate takes four times the floor, so four times HF's speed would equal the floor."

const halfWeights = "In the matrix unit (AMX) we split each row of activations into two rows of bf16, which keep 16 bits of precision. " +
	"HF keeps 8. Attention, norms and the rest of a pass are float32 on both sides and take most of the time. " +
	"With the avx512_bf16 of AMD and of Cooper Lake, activations are rounded to " +
	"bf16. On other CPUs, weights are widened to float32."

const roundedFactors = "Products take half of the time of an update with rounded factors. Attention, norms, AdamW and the loss are as in float32."

const mixtureDecode = "Both read nearly all experts for 16 rows, and HF takes at most 2.2 times the floor in float32. Three times HF's speed would be faster " +
	"than the floor."

const mixtureUpdate = "On both sides float32 products are LibTorch's and take most of the time. HF also spends time on gathering rows."

const twoAgents = "A batch of 16 rows is compared with two batches of 8. From about ten rows on, instructions limit float32 products, and not the reading " +
	"of weights (row linear). So the larger batch saves a third of the time and not half."

const lossFloor = "The ceiling comes from one measurement, and measurements differ by a fifth and more."

const smallStep = "The update takes about its floor, and sampling about twice its floor. Sampling has products of few rows, and the work of Go and LibTorch " +
	"around small operations runs on one thread."

const oneRedis = "All invocations are answered as they arrive, half of them within a hundredth of a second. The slowest hundredth wait during a phase " +
	"change. All 999 workers change phase at once, on two cores that Redis and all workers share."

const wholeStep = "The update is at its floor. Sampling is not: products of 16 rows reach a third of the rate that the floor assumes."

const adaptedStep = "An update is 1.26 to 1.29 times as fast (learner). But sampling is half of a full step, and there the adapters stay unmerged. " +
	"So each token needs two more products, with few rows and a small inner dimension, for each of 210 matrices."

const adaptedMemory = "The peak consists of the base, the sampler's cache and activations. A full step also has gradients and moments."

const (
	wideCache = "llama.cpp keeps keys and values as float16, and ours are float32. With 16 sequences of 1,024 tokens they are most of the bytes of " +
		"a pass. engine.cache_dtype bf16 halves them: see F32-bf16-cache-16x1024."
	halfCache = "Keys and values take the same bytes as llama.cpp's. The rest is products in float32 with 16 rows, where both read the same bytes."
)

const fromCache = "a pass finds a part of the weights in the last-level cache of 260 MiB, where the pass before it left them"

// The figures come from TestRoofline of bench/phases.
const (
	fewRows = "Matrix products take most of our time. With 16 rows they reach 0.4 to 0.7 of the rate of large products. With the kernels' rates " +
		"the model of docs/roofline.md predicts 0.86 to 0.90 of our time, so the target needs faster products."
	slowHalf       = "The reason is the same as in float32. This processor multiplies bf16 at half the rate of float32."
	mostlyProducts = "Both spend most of the time in matrix products, at 0.7 to 0.9 of their largest rate."
)

// MKL, which computes LibTorch's float32 products, uses AVX2 on AMD with every value of MKL_CBWR and MKL_ENABLE_INSTRUCTIONS.
const slowCeiling = "the ceiling is LibTorch's float32 product, which uses AVX2 on AMD; ours uses AVX-512, and int8 products for quantised weights"

const busyCeiling = "other work on the machine slowed the measurement of the ceiling"

// fasterThanFloor holds the rows that are faster than their floor, with the reason.
var fasterThanFloor = map[string]string{
	"F32-prompts-8x512": slowCeiling, "Q8_0-prompts-8x512": slowCeiling, "Q4_1-prompts-8x512": slowCeiling,
	"F32-1x128": fromCache, "F32-4x128": fromCache, "F32-1x1024": fromCache,
	"recurrent-F32-1x128": busyCeiling, "recurrent-BF16-1x128": busyCeiling, "hybrid-F32-1x128": busyCeiling, "hybrid-BF16-1x128": busyCeiling,
	"swiglu fwd+bwd": "the cache's rate is measured in its last level, and the first levels hold a part of the inputs",
	"linear": "the ceiling of reading varied from 9 to 19 GB/s on this machine within an hour, and the product itself " +
		"reads 25 GB/s, so the ceiling is too low",
	"trained_linear fwd+bwd, bf16 factors": "the ceiling of bf16 is measured with another shape, and with few samples",
}

// reasons explains missed targets, by "suite name" of the row, with "gpu" before it on a GPU,
// and the kind of target. They are written by hand from profiles.
var reasons = map[string]map[measure.Kind]string{
	"rollout hybrid":                       {measure.Faster: fewRows},
	"rollout hybrid-bf16":                  {measure.Faster: slowHalf},
	"rollout recurrent":                    {measure.Faster: fewRows},
	"rollout recurrent-bf16":               {measure.Faster: slowHalf},
	"learner hybrid":                       {measure.Faster: mostlyProducts},
	"learner recurrent":                    {measure.Faster: mostlyProducts},
	"kernels linear_policy_loss":           {measure.Floor: lossFloor},
	"kernels linear_policy_loss, bfloat16": {measure.Faster: slowHalf},
	"rollout smollm2":                      {measure.Faster: smallProducts, measure.Floor: smallProducts},
	"rollout smollm2-bf16":                 {measure.Faster: halfWeights, measure.Floor: halfWeights},
	"rollout mixture":                      {measure.Faster: mixtureDecode},
	"rollout mixture-bf16":                 {measure.Faster: halfWeights},
	"rollout two-agents":                   {measure.Faster: twoAgents},
	"learner smollm2-bf16":                 {measure.Faster: roundedFactors},
	"decode F32-1x128":                     {measure.Faster: "Both read the weights as fast as the memory gives them."},
	"decode F32-16x1024":                   {measure.Faster: wideCache},
	"decode F32-bf16-cache-16x1024":        {measure.Faster: halfCache},
	"learner mixture":                      {measure.Faster: mixtureUpdate},
	"learner smollm2-lora": {measure.Faster: "On Zen 5 our kernel computes the products with the base in both updates. The products of adapters, " +
		"with an inner dimension of 16, are LibTorch's."},
	"step smollm2-bf16": {measure.Faster: slowHalf},
	"step team": {measure.Faster: "Both spend most of the time in matrix products. CoMLRL samples with transformers, and " +
		"computes each row of an update alone, without sharing the prompt."},
	"step smollm2":      {measure.Floor: wholeStep},
	"step small":        {measure.Faster: smallStep},
	"step smollm2-lora": {measure.Faster: adaptedStep, measure.Memory: adaptedMemory},
	"gpu rollout decode": {measure.Floor: "With few rows or short contexts, most of a layer's ten kernels take longer to start than " +
		"to move their bytes: 3 to 8 µs each in a profile of 64 rows. There cuBLAS's products took 1.3 times their floor, and attention 1.7 times."},
}

// gpuRemarks limit what a met target on a GPU shows.
var gpuRemarks = map[string]string{
	"rollout qwen3-1.7b": "Ours keeps a cache for more sequences, in twice the peer's memory.",
	"rollout qwen3-0.6b": "Ours keeps a cache for more sequences, in 1.5 times the peer's memory.",
	"learner qwen3-1.7b": "The peer trains bf16 weights with bf16 moments, in 0.73 of our memory. Ours keeps float32 weights and moments.",
	"learner qwen3-0.6b": "The peer trains bf16 weights with bf16 moments, in 0.8 of our memory. Ours keeps float32 weights and moments.",
}
