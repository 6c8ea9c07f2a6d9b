package kernels

import (
	"fmt"
	"maps"
	"slices"

	"github.com/mgrpo/mgrpo/bench/measure"
)

var (
	bothCaches = []measure.Cache{measure.Hot, measure.Cold}
	coldOnly   = []measure.Cache{measure.Cold}
	pytorch    = []string{"torch-eager", "torch-compile"}
)

// full returns the cases of the tables, in the sizes of SmolLM2-135M, some with a larger vocabulary.
func full() []workload {
	var all []workload
	for _, groups := range []int64{1, 100, 10_000} {
		all = append(all, advantages(groups))
	}
	for _, size := range [][2]int64{{2048, 49_152}, {512, 151_936}} {
		all = append(all, logProbs(size[0], size[1], 0), logProbs(size[0], size[1], 1))
	}
	for _, rows := range []int64{128, 512, 1024, 2048} {
		w := lossFromLogits(rows, 49_152)
		if rows == 2048 {
			w.targets = lossTargets
		}
		all = append(all, w)
	}
	w := lossFromLogits(512, 151_936)
	w.targets = lossTargets
	all = append(all, w)
	for _, rows := range []int64{256, 512, 1024, 2048} {
		w := linearLoss(rows, 576, 49_152)
		if rows == 2048 {
			w.targets = []measure.Target{faster("torch-eager", 1.2), faster("torch-chunked", 1.2), nearFloor(1.1), lessMemory("torch-eager", 0.15)}
		}
		all = append(all, w)
	}
	w = linearLoss(2048, 576, 49_152).inHalf()
	w.peerDType, w.peers, w.shape = "float32", []string{"torch-eager"}, w.shape+", peer in float32"
	w.targets = []measure.Target{faster("torch-eager", 2.2)}
	all = append(all, w)
	w = optimizer(134_515_008)
	w.targets = []measure.Target{faster("torch-fused", 1.1)}
	all = append(all, w)
	for _, backward := range []int64{0, 1} {
		all = append(all, norms(2048, 576, backward), addedNorms(2048, 576, backward), gates(2048, 1536, backward), splits(2048, 9, 3, 64, backward),
			attentions(16, 64, 192, 9, 3, 64, backward))
	}
	all = append(all, decodes(16, 1024, 9, 3, 64))
	for _, backward := range []int64{0, 1} { // with the heads of Qwen3.5-0.8B
		all = append(all, deltaRules(16, 128, 16, 16, 128, backward))
	}
	all = append(all, deltaSteps(16, 16, 16, 128))
	for _, size := range [][2]int64{{576, 1536}, {1536, 576}, {576, 49_152}} {
		for _, rows := range []int64{1, 4, 16} {
			all = append(all, linears(rows, size[0], size[1], ""), linears(rows, size[0], size[1], halfWeights),
				linears(rows, size[0], size[1], measure.BF16Factors))
		}
	}
	for _, size := range [][2]int64{{576, 1536}, {1536, 576}} {
		all = append(all, trainedLinears(1024, size[0], size[1], "float32"), trainedLinears(1024, size[0], size[1], "bfloat16"))
	}
	return append(all, samples(16, 49_152))
}

// gpu returns the cases of a GPU's tables, in bf16, at the sizes of models of some billion parameters with Qwen's vocabulary.
func gpu() []workload {
	const vocab = 151_936
	near := []measure.Target{nearFloor(1.18)} // 85 % of a copy
	all := []workload{advantages(125_000), advantages(1_000_000)}
	for _, backward := range []int64{0, 1} {
		w := logProbs(4096, vocab, backward).inHalf()
		w.targets = near
		all = append(all, w)
	}
	for _, w := range []workload{lossFromLogits(512, vocab).inHalf(), lossFromLogits(4096, vocab).inHalf(), lossFromLogits(2048, 49_152)} {
		w.targets = near
		all = append(all, w)
	}
	w := linearLoss(8192, 4096, vocab).inHalf()
	w.targets = []measure.Target{nearFloor(1.15)}        // of 6 N D V only; reading and writing the logits once is 3 % more
	w.peers = []string{"torch-compile", "torch-chunked"} // eager PyTorch in addition needs more than 80 GB
	all = append(all, linearLoss(2048, 896, vocab).inHalf(), w)
	w = optimizer(134_515_008)
	w.targets = []measure.Target{faster("torch-fused", 1)}
	all = append(all, w)
	for _, backward := range []int64{0, 1} {
		all = append(all, addedNorms(8192, 4096, backward).inHalf(), gates(8192, 11_008, backward).inHalf(), splits(8192, 32, 8, 128, backward).inHalf())
	}
	for _, sequences := range []int64{8, 64} {
		all = append(all, decodes(sequences, 1024, 14, 2, 64).inHalf(), decodes(sequences, 4096, 32, 8, 128).inHalf())
	}
	all = append(all, decodes(64, 1024, 16, 8, 128).inHalf(), decodes(64, 1024, 16, 2, 256).inHalf())
	for _, backward := range []int64{0, 1} { // with the heads of Qwen3.5-9B
		all = append(all, deltaRules(4, 2048, 16, 32, 128, backward).inHalf())
	}
	all = append(all, deltaSteps(64, 16, 32, 128))
	return append(all, samples(64, vocab).inHalf())
}

// quick returns all cases at sizes that take little time. Sizes are odd if the kernel allows it.
func quick() []workload {
	return []workload{
		logProbs(133, 1003, 0).inHalf(), logProbs(133, 1003, 1).inHalf(), lossFromLogits(256, 1003).inHalf(), linearLoss(640, 64, 1003).inHalf(),
		addedNorms(37, 64, 0).inHalf(), addedNorms(37, 64, 1).inHalf(), gates(37, 64, 0).inHalf(), gates(37, 64, 1).inHalf(),
		splits(37, 6, 2, 16, 0).inHalf(), splits(37, 6, 2, 16, 1).inHalf(), deltaRules(3, 37, 2, 4, 16, 0).inHalf(),
		deltaRules(3, 37, 2, 4, 16, 1).inHalf(), decodes(5, 37, 6, 2, 16).inHalf(), samples(3, 1003).inHalf(),
		advantages(101), logProbs(133, 1003, 0), logProbs(133, 1003, 1), lossFromLogits(256, 1003), linearLoss(640, 65, 1003),
		optimizer(10_007), norms(37, 65, 0), norms(37, 65, 1), addedNorms(37, 65, 0), addedNorms(37, 65, 1), gates(37, 65, 0), gates(37, 65, 1),
		splits(37, 6, 2, 16, 0), splits(37, 6, 2, 16, 1),
		attentions(4, 1, 37, 6, 2, 16, 0), attentions(4, 1, 37, 6, 2, 16, 1), decodes(5, 37, 6, 2, 16), deltaRules(3, 37, 2, 4, 16, 0),
		deltaRules(3, 37, 2, 4, 16, 1), deltaSteps(5, 2, 4, 16),
		linears(3, 65, 129, ""), linears(3, 65, 129, halfWeights), linears(3, 65, 129, measure.BF16Factors),
		trainedLinears(37, 65, 129, "float32"), trainedLinears(37, 65, 129, "bfloat16"), samples(3, 1003),
	}
}

var lossTargets = []measure.Target{faster("torch-eager", 12), faster("torch-compile", 6), nearFloor(2)}

func faster(peer string, bound float64) measure.Target {
	return measure.Target{Kind: measure.Faster, Peer: peer, Bound: bound, Text: fmt.Sprintf("at least %g times as fast as %s", bound, peer)}
}

func nearFloor(bound float64) measure.Target {
	return measure.Target{Kind: measure.Floor, Bound: bound, Text: fmt.Sprintf("at most %g times the floor", bound)}
}

func lessMemory(peer string, bound float64) measure.Target {
	return measure.Target{Kind: measure.Memory, Peer: peer, Bound: bound, Text: fmt.Sprintf("at most %g times the extra memory of %s", bound, peer)}
}

func bytes(formula string, value int64) measure.Amount {
	return measure.Amount{Formula: formula, Value: float64(value)}
}

// flops counts an exponential, a root and a division as one operation each.
func flops(formula string, value float64) measure.Amount {
	return measure.Amount{Formula: formula, Value: value}
}

// inHalf returns the case with its numbers in bf16. Accumulators stay in float32.
func (w workload) inHalf() workload {
	w.dims, w.dtype = maps.Clone(w.dims), "bfloat16"
	w.dims[half] = 1
	w.bytes = measure.Amount{Formula: "half of " + w.bytes.Formula, Value: w.bytes.Value / 2}
	return w
}

// withBackward returns the case with the counts of forward and backward, if it computes both.
func (w workload) withBackward(bytes, flops measure.Amount) workload {
	if w.dims["backward"] == 1 {
		w.bytes, w.flops = bytes, flops
	}
	return w
}

func advantages(groups int64) workload {
	n := members(groups)
	return workload{name: "group_advantage", dims: dims{"groups": groups}, shape: fmt.Sprintf("%d rewards in %d groups", n, groups),
		bytes: bytes("8 n + 8 (G+1): rewards and advantages of n members, offsets of G groups", 8*n+8*(groups+1)),
		flops: flops("6 n", 6*float64(n)),
		peers: pytorch, caches: coldOnly, open: groupAdvantage}
}

func logProbs(rows, vocab, backward int64) workload {
	w := workload{name: "token_logprob", dims: dims{"rows": rows, "vocab": vocab, "backward": backward}, shape: fmt.Sprintf("%d x %d", rows, vocab),
		bytes: bytes("4 N V: logits read once", 4*rows*vocab), flops: flops("5 N V", 5*float64(rows*vocab)), reads: backward == 0,
		peers: pytorch, caches: coldOnly, open: tokenLogProb}
	return w.withBackward(bytes("8 N V: logits read once, their gradient written once", 8*rows*vocab), flops("11 N V", 11*float64(rows*vocab)))
}

func lossFromLogits(rows, vocab int64) workload {
	return workload{name: "policy_loss_from_logits", dims: dims{"rows": rows, "vocab": vocab}, shape: fmt.Sprintf("%d x %d", rows, vocab),
		bytes: bytes("8 N V: logits read once, their gradient written once", 8*rows*vocab),
		flops: flops("11 N V", 11*float64(rows*vocab)), peers: pytorch, caches: coldOnly, open: policyLossFromLogits}
}

func linearLoss(rows, width, vocab int64) workload {
	return workload{name: "linear_policy_loss", dims: dims{"rows": rows, "width": width, "vocab": vocab},
		shape: fmt.Sprintf("%d x %d x %d", rows, width, vocab),
		bytes: bytes("8 (N D + V D): hidden states and weights read, their gradients written", 8*(rows*width+vocab*width)),
		flops: flops("6 N D V: logits and two gradients", 6*float64(rows)*float64(width)*float64(vocab)),
		peers: append(slices.Clone(pytorch), "torch-chunked"), caches: coldOnly, open: linearPolicyLoss}
}

func optimizer(n int64) workload {
	return workload{name: "adamw", dims: dims{"n": n}, shape: fmt.Sprintf("%d parameters, clipped", n),
		bytes: bytes("32 n: gradient read for the norm; p, m, v, g read, p, m, v written", 32*n),
		flops: flops("17 n", 17*float64(n)),
		peers: []string{"torch-eager", "torch-fused", "torch-compile"}, caches: coldOnly, open: adamW}
}

func norms(rows, width, backward int64) workload {
	w := workload{name: "rms_norm", dims: dims{"rows": rows, "width": width, "backward": backward}, shape: fmt.Sprintf("%d x %d", rows, width),
		bytes: bytes("8 N D: read, write", 8*rows*width), flops: flops("4 N D", 4*float64(rows*width)), peers: pytorch, caches: bothCaches, open: rmsNorm}
	return w.withBackward(bytes("20 N D: x read, y written; dy and x read, dx written", 20*rows*width), flops("13 N D", 13*float64(rows*width)))
}

func addedNorms(rows, width, backward int64) workload {
	w := workload{name: "add_rms_norm", dims: dims{"rows": rows, "width": width, "backward": backward}, shape: fmt.Sprintf("%d x %d", rows, width),
		bytes: bytes("16 N D: x and residual read, sum and norm written", 16*rows*width), flops: flops("5 N D", 5*float64(rows*width)), peers: pytorch,
		caches: bothCaches, open: addRMSNorm}
	return w.withBackward(bytes("32 N D: forward 16; two gradients and sum read, one written", 32*rows*width),
		flops("15 N D", 15*float64(rows*width)))
}

func gates(rows, width, backward int64) workload {
	w := workload{name: "swiglu", dims: dims{"rows": rows, "width": width, "backward": backward}, shape: fmt.Sprintf("%d x 2*%d", rows, width),
		bytes: bytes("12 N F: gate and up read, product written", 12*rows*width), flops: flops("5 N F", 5*float64(rows*width)), peers: pytorch,
		caches: bothCaches, open: swiglu}
	return w.withBackward(bytes("32 N F: forward 12; dy, gate and up read, two gradients written", 32*rows*width),
		flops("14 N F", 14*float64(rows*width)))
}

// splits returns the case that splits a product into heads, and normalises and rotates them.
func splits(rows, queries, kv, hd, backward int64) workload {
	n := rows * (queries + 2*kv) * hd
	w := workload{name: "heads", dims: dims{"rows": rows, "heads": queries, "kv_heads": kv, "head_dim": hd, "backward": backward},
		shape: fmt.Sprintf("%d x %d/%d heads of %d", rows, queries, kv, hd), bytes: bytes("8 N (H + 2 KV) d: read, write", 8*n),
		flops: flops("7 N (H + KV) d", 7*float64(rows*(queries+kv)*hd)), peers: pytorch, caches: bothCaches, open: heads}
	return w.withBackward(bytes("20 N (H + 2 KV) d: read, write; gradients and product read, one written", 20*n),
		flops("19 N (H + KV) d", 19*float64(rows*(queries+kv)*hd)))
}

func attentions(sequences, shortest, longest, heads, kv, hd, backward int64) workload {
	n := dims{"sequences": sequences, "shortest": shortest, "longest": longest, "heads": heads, "kv_heads": kv, "head_dim": hd, "backward": backward}
	rows, pairs := int64(0), int64(0)
	for _, l := range lengths(n) {
		rows += l
		pairs += l * (l + 1) / 2
	}
	w := workload{name: "attention_packed", dims: n, shape: fmt.Sprintf("%d sequences, %d rows, %d/%d heads of %d", sequences, rows, heads, kv, hd),
		bytes: bytes("8 T (H + KV) d: q, k, v read, output written", 8*rows*(heads+kv)*hd),
		flops: flops("4 d H per visible pair", 4*float64(hd*heads*pairs)), peers: pytorch, caches: bothCaches, open: attention}
	return w.withBackward(bytes("8 T (3 H + 3 KV) d: forward; output, its gradient, q, k, v read, three gradients written", 24*rows*(heads+kv)*hd),
		flops("14 d H per visible pair: forward 4, backward 10", 14*float64(hd*heads*pairs)))
}

func decodes(sequences, context, heads, kv, hd int64) workload {
	return workload{name: "decode_attention", dims: dims{"sequences": sequences, "context": context, "heads": heads, "kv_heads": kv, "head_dim": hd},
		shape: fmt.Sprintf("%d rows, context %d, %d/%d heads of %d", sequences, context, heads, kv, hd),
		bytes: bytes("8 S L KV d: cached keys and values read", 8*sequences*context*kv*hd), reads: true,
		flops: flops("4 d H per visible pair", 4*float64(hd*heads*sequences*context)), peers: pytorch, caches: bothCaches, open: decodeAttention}
}

// recurrence is the arithmetic of a gated delta rule for a row and a head. The state decays (1 operation
// a value), is multiplied by the key (2), takes the update (2), and is multiplied by the query (2).
const recurrence = 7

// deltaRules returns the gated delta rule over packed sequences of equal lengths.
func deltaRules(sequences, length, keyHeads, valueHeads, hd, backward int64) workload {
	rows := sequences * length
	n := rows * (2*keyHeads + 2*valueHeads) * hd
	work := float64(rows*valueHeads) * float64(hd*hd)
	w := workload{name: "gated_delta_rule",
		dims:  dims{"sequences": sequences, "length": length, "key_heads": keyHeads, "value_heads": valueHeads, "head_dim": hd, "backward": backward},
		shape: fmt.Sprintf("%d sequences of %d, %d/%d heads of %d", sequences, length, keyHeads, valueHeads, hd),
		bytes: bytes("8 T (K + V) d: q, k, v read, output written", 4*n), flops: flops("7 T V d d: every row updates a state", recurrence*work),
		peers: pytorch[:1], caches: coldOnly, open: deltaRule}
	return w.withBackward(bytes("24 T (K + V) d: forward 8; inputs and the output's gradient read, gradients written", 12*n),
		flops("21 T V d d: forward 7, backward 14", 3*recurrence*work))
}

// deltaSteps returns one row of each sequence: the gated delta rule in decoding.
func deltaSteps(sequences, keyHeads, valueHeads, hd int64) workload {
	states := sequences * valueHeads * hd * hd
	return workload{name: "gated_delta_step", dims: dims{"sequences": sequences, "key_heads": keyHeads, "value_heads": valueHeads, "head_dim": hd},
		shape: fmt.Sprintf("%d rows, %d/%d heads of %d", sequences, keyHeads, valueHeads, hd),
		bytes: bytes("8 S V d d: states read and written", 8*states), flops: flops("7 S V d d", recurrence*float64(states)),
		peers: pytorch[:1], caches: bothCaches, open: deltaStep}
}

const halfWeights = "bf16 weights"

// linears returns a case with weights in float32 (dtype "") or in bf16. With bf16 weights the peers' inputs are bf16, too. With
// measure.BF16Factors our input is rounded, as in an engine with dtype: bf16 under run.matmul: bf16.
func linears(rows, in, out int64, dtype string) workload {
	w := workload{name: "linear", dims: dims{"rows": rows, "in": in, "out": out}, shape: fmt.Sprintf("%d x %d x %d", rows, in, out), dtype: dtype,
		bytes: bytes("4 (K N + R K + R N): weights and input read, output written", 4*(in*out+rows*in+rows*out)), reads: true,
		flops: flops("2 R K N", 2*float64(rows*in*out)), peers: pytorch, caches: coldOnly, open: linear}
	if dtype == measure.BF16Factors {
		w.open = roundedLinear
	}
	if dtype != "" {
		w.dims[half] = 1
		w.bytes = bytes("2 K N + 4 (R K + R N): weights and input read, output written", 2*in*out+4*(rows*in+rows*out))
	}
	return w
}

// trainedLinears returns a case that rounds factors to bf16, as run.matmul: bf16 does. Its other numbers are float32. The peer computes in
// bf16 or in float32.
func trainedLinears(rows, in, out int64, peer string) workload {
	return workload{name: "trained_linear", dims: dims{"rows": rows, "in": in, "out": out, half: 1, "backward": 1},
		shape: fmt.Sprintf("%d x %d x %d, peer in %s", rows, in, out, peer), dtype: measure.BF16Factors, peerDType: peer,
		bytes: bytes("8 (K N + R K + R N): weights, input and the output's gradient read, output and two gradients written", 8*(in*out+rows*in+rows*out)),
		flops: flops("6 R K N: output and two gradients", 6*float64(rows)*float64(in*out)), peers: pytorch, caches: coldOnly, open: trainedLinear}
}

func samples(rows, vocab int64) workload {
	return workload{name: "sample", dims: dims{"rows": rows, "vocab": vocab}, shape: fmt.Sprintf("%d x %d", rows, vocab),
		bytes: bytes("4 R V: logits read once", 4*rows*vocab), flops: flops("5 R V", 5*float64(rows*vocab)), reads: true, peers: pytorch,
		caches: bothCaches, open: sample}
}
