package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/mgrpo/mgrpo/bindings/kernels"
	"github.com/mgrpo/mgrpo/trainer/engine/learner"
	"github.com/mgrpo/mgrpo/trainer/mgrpo"
	"github.com/mgrpo/mgrpo/trainer/mgrpo/advantages"
)

type advantagesCmd struct {
	linesFlags
	Npy        string `placeholder:"FILE" help:"Read rewards [queries, rollouts] from a NumPy file instead of lines, and write their advantages to the NumPy file --output."`
	Weights    string `placeholder:"FILE" help:"With --npy: weights of the rewards' shape, float64. 0 leaves a rollout out."`
	Convention string `default:"mgrpo" placeholder:"NAME" help:"With --npy: the convention, named after the library that has it (mgrpo, trl, verl, rloo, dr_grpo...)."`
}

func (advantagesCmd) Help() string {
	return `Lines {"groups": [{"rewards", "weights"?}], "convention"?} are answered with {"groups": [{"advantage", "mean",
"std_population", "degenerate"}]}, computed by the kernel that training uses; lines {"run_seed", "query",
"rollout", "agent", "d", "d_k"} with the alignment's {"multiplicity", "draws"}. A line that is refused gets
{"error"}.

  echo '{"groups": [{"rewards": [1, 0, 0.5]}]}' | mgrpo advantages
  mgrpo advantages --npy rewards.npy --output advantages.npy`
}

func (c *advantagesCmd) Run() error {
	switch {
	case c.Npy != "":
		return c.arrays()
	case c.Weights != "" || c.Convention != "mgrpo":
		return errors.New("--weights and --convention belong to --npy: a line has weights and a convention of its own")
	}
	return c.convert(func(r io.Reader, w io.Writer) error { return advantages.JSONL(r, w, learner.Normaliser(kernels.CPU)) })
}

// arrays reads and writes NumPy files.
func (c *advantagesCmd) arrays() (err error) {
	if c.Input != "-" || c.Output == "-" {
		return errors.New("--npy FILE needs --output FILE for the advantages, and no --input")
	}
	convention, err := mgrpo.ConventionByName(c.Convention)
	if err != nil {
		return fmt.Errorf("--convention: %w", err)
	}
	queries, flat, err := advantages.Files(c.Npy, c.Weights, c.Output, convention)
	if err != nil {
		return err
	}
	fmt.Printf("%s: %d queries, %d of them without a signal (equal rewards or no rollout)\n", c.Output, queries, flat)
	return nil
}
