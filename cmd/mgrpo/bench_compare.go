package main

import (
	"fmt"

	"github.com/mgrpo/mgrpo/bench/measure"
)

type benchCompareCmd struct {
	Before string `arg:"" name:"BEFORE" help:"Results of a suite, or of a run (bench/studies/learned)."`
	After  string `arg:"" name:"AFTER" help:"Results of the same suite, or of another run."`
}

func (benchCompareCmd) Help() string {
	return `For two files of a suite: prints how many times as fast AFTER is, case by case. For two runs (bench/studies/learned): prints
their held-out accuracies, and the difference with an unpaired 95 % interval.`
}

func (c *benchCompareCmd) Run() error {
	table, err := measure.Compare(c.Before, c.After)
	fmt.Print(table)
	return err
}
