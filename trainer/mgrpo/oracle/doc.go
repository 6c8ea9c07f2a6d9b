// Package oracle computes M-GRPO's advantages and policy loss in plain float64 Go, written for readability rather than
// speed. Tests compare the kernels with it, and so does the self-test before a run (run/selftest). Training itself
// does not use it. It uses the formulas, the order of refusals and the names in docs/algorithm.md.
//
// This package is private and changes without notice; docs/library.md lists the public ones.
package oracle
