// Package mgrpo is the M-GRPO algorithm: rewards, alignment of sub-agent invocations, groups, and the options and
// statistics of advantages and policy objective, in plain Go.
//
// The kernels compute advantages and loss (bindings/kernels); their inputs and outputs are the types of this package.
// Tests compare the kernels with the float64 definition in oracle/. Nothing in this package reads a clock, a file or a
// tensor, so every result is a pure function of its arguments. Equation numbers are those of the M-GRPO paper (arXiv
// 2511.13288 v2); where the paper leaves a choice open, the comments say which choice was made.
package mgrpo
