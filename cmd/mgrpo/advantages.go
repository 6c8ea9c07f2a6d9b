package main

import (
	"errors"
	"fmt"

	"github.com/mgrpo/mgrpo/trainer/advantages"
	"github.com/mgrpo/mgrpo/trainer/mgrpo"
)

type advantagesCmd struct {
	linesFlags
	Npy        string `placeholder:"FILE" help:"Read rewards [queries, rollouts] from a NumPy file instead of lines, and write advantages to the file --out."`
	Weights    string `placeholder:"FILE" help:"With --npy: weights, a float64 array of the rewards' shape. 0 leaves a rollout out."`
	Convention string `default:"mgrpo" placeholder:"NAME" help:"With --npy: convention of normalisation of a library (mgrpo, trl, verl, rloo, dr_grpo...)."`
}

func (advantagesCmd) Help() string {
	return `A line {"groups": [{"rewards", "weights"?}], "convention"?} is answered with {"groups": [{"advantage", "mean",
"std_population", "degenerate"}]}, computed by the kernel that training uses.

A line {"run_seed", "query", "rollout", "agent", "d", "d_k"} is answered with the alignment's {"multiplicity",
"draws"}. An invalid line is answered with {"error"}.

  echo '{"groups": [{"rewards": [1, 0, 0.5]}]}' | mgrpo advantages
  mgrpo advantages --npy rewards.npy --out advantages.npy`
}

func (c *advantagesCmd) Run() error {
	switch {
	case c.Npy != "":
		return c.arrays()
	case c.Weights != "" || c.Convention != "mgrpo":
		return errors.New("--weights and --convention belong to --npy: a line has weights and a convention of its own")
	}
	return c.convert(advantages.JSONL)
}

// arrays reads and writes NumPy files.
func (c *advantagesCmd) arrays() (err error) {
	if c.Input != "-" || c.Out == "-" {
		return errors.New("--npy FILE needs --out FILE for the advantages, and no --input")
	}
	convention, err := mgrpo.ConventionByName(c.Convention)
	if err != nil {
		return fmt.Errorf("--convention: %w", err)
	}
	queries, flat, err := advantages.Files(c.Npy, c.Weights, c.Out, convention)
	if err != nil {
		return err
	}
	fmt.Printf("%s: %d queries, %d of them without a signal (equal rewards or no rollout)\n", c.Out, queries, flat)
	return nil
}
