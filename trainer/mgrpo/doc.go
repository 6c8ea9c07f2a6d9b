// Package mgrpo is the M-GRPO algorithm and nothing else: rewards, alignment of sub-agent invocations,
// groups, group-relative advantages, and the policy objective, all in plain float64 Go.
//
// The trainer runs the advantage and loss kernels; the functions here decide what goes into them and are
// the oracle they are tested against. Nothing in this package reads a clock, a file or a tensor, so every
// result is a pure function of its arguments. Equation numbers are those of the M-GRPO paper
// (arXiv 2511.13288 v2); where the paper is silent the comments say what was decided.
package mgrpo
