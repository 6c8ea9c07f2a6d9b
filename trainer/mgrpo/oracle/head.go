package oracle

import (
	"math"

	"github.com/mgrpo/mgrpo/trainer/mgrpo"
)

// TokenLogProb returns the log-prob of the target and the entropy of softmax(logits/tau), in nats. A logit of -Inf has
// probability 0. It refuses a NaN or +Inf logit, a target outside the row, and a target with probability 0.
func TokenLogProb(logits []float64, target int, tau float64) (logProb, entropy float64, err error) {
	if target < 0 || target >= len(logits) || !(tau > 0) {
		return 0, 0, &mgrpo.Refusal{Code: mgrpo.MalformedInput, Field: "targets", Message: "target outside the row, or temperature not positive"}
	}
	top := math.Inf(-1)
	for _, z := range logits {
		if math.IsNaN(z) || math.IsInf(z, 1) {
			return 0, 0, &mgrpo.Refusal{Code: mgrpo.NonFiniteInput, Field: "logits"}
		}
		top = max(top, z)
	}
	if math.IsInf(logits[target], -1) {
		return 0, 0, &mgrpo.Refusal{Code: mgrpo.NonFiniteInput, Field: "logp_new"}
	}
	sum, weighted := 0.0, 0.0 // sum e^x and sum x e^x with x = (z - top)/tau
	for _, z := range logits {
		if x := (z - top) / tau; !math.IsInf(x, -1) {
			e := math.Exp(x)
			sum += e
			weighted += x * e
		}
	}
	logSum := math.Log(sum)
	return (logits[target]-top)/tau - logSum, logSum - weighted/sum, nil
}

// TokenLogProbGrad returns dL/dlogits of one row from G = dL/dlogProb and E = dL/dentropy:
// (G (1[v = target] - p_v) - E p_v (ln p_v + H)) / tau.
func TokenLogProbGrad(logits []float64, target int, tau, dLogProb, dEntropy float64) ([]float64, error) {
	logProb, entropy, err := TokenLogProb(logits, target, tau)
	if err != nil {
		return nil, err
	}
	grad := make([]float64, len(logits))
	for v, z := range logits {
		if math.IsInf(z, -1) {
			continue
		}
		logP := (z-logits[target])/tau + logProb
		p := math.Exp(logP)
		towards := -p
		if v == target {
			towards = -math.Expm1(logP) // 1 - p without cancellation
		}
		grad[v] = (dLogProb*towards - dEntropy*p*(logP+entropy)) / tau
	}
	return grad, nil
}
