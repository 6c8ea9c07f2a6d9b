// Package mgrpo is the M-GRPO algorithm in plain Go: rewards, alignment of sub-agent invocations, groups, and the
// options and statistics of advantages and the policy objective.
//
// The kernels compute advantages and loss (bindings/kernels). Their inputs and outputs are the types of this package.
// Tests compare the kernels with the float64 definition in oracle/. Nothing in this package reads a clock, a file or a
// tensor, so every result is a pure function of its arguments. Equation numbers refer to the M-GRPO paper (arXiv
// 2511.13288 v2). If the paper leaves a choice open, a comment states the choice made.
package mgrpo
