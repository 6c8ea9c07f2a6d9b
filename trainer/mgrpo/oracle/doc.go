// Package oracle is M-GRPO's advantages and policy loss in plain float64 Go, written for reading and not for speed. Tests
// compare the kernels with it; the trainer does not use it. Formulas, order of refusals and names are those of
// docs/algorithm.md.
package oracle
