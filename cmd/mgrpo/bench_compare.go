package main

import (
	"fmt"

	"github.com/mgrpo/mgrpo/bench/measure"
)

type benchCompareCmd struct {
	Before string `arg:"" name:"BEFORE" help:"Results of a suite, or of a run that learned."`
	After  string `arg:"" name:"AFTER" help:"Results of the same suite, or of another run."`
}

func (benchCompareCmd) Help() string {
	return `Prints two files of bench/results side by side: how many times as fast AFTER is, case by case; or, for two runs (bench/learned), their held-out
accuracies and the difference with an unpaired 95 % interval.`
}

func (c *benchCompareCmd) Run() error {
	table, err := measure.Compare(c.Before, c.After)
	fmt.Print(table)
	return err
}
