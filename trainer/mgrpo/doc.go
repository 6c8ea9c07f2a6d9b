// Package mgrpo is the M-GRPO algorithm: rewards, alignment of sub-agent invocations, groups, and the options and
// statistics of advantages and policy objective, in plain Go.
//
// The kernels compute advantages and loss (bindings/kernels); the types here are what they take and return. The float64
// definition that they are tested against is in oracle/. Nothing in this package reads a clock, a file or a tensor, so
// every result is a pure function of its arguments. Equation numbers are those of the M-GRPO paper (arXiv 2511.13288
// v2); where the paper is silent the comments say what was decided.
package mgrpo
