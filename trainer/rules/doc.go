// Package rules holds tests of the repository, and no code for other packages. They check who may import what (rooms.txt), how
// large types, functions and files may be, which files the repository may contain, and that documents agree with the code. Tests of
// the trainer itself are next to its code, and in trainer/endtoend.
//
// This package is private and changes without notice; docs/library.md lists the public ones.
package rules
