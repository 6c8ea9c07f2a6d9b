package main

import (
	"io"

	"github.com/mgrpo/mgrpo/bindings/kernels"
	"github.com/mgrpo/mgrpo/trainer/engine/learner"
	"github.com/mgrpo/mgrpo/trainer/mgrpo/advantages"
)

type advantagesCmd struct{ linesFlags }

func (advantagesCmd) Help() string {
	return `Lines {"groups": [{"rewards", "weights"?}], "convention"?} are answered with {"groups": [{"advantage", "mean",
"std_population", "degenerate"}]}, computed by the kernel that training uses; lines {"run_seed", "query",
"rollout", "agent", "d", "d_k"} with the alignment's {"multiplicity", "draws"}. A line that is refused gets
{"error"}.

  echo '{"groups": [{"rewards": [1, 0, 0.5]}]}' | mgrpo advantages`
}

func (c *advantagesCmd) Run() error {
	return c.convert(func(r io.Reader, w io.Writer) error { return advantages.JSONL(r, w, learner.Normaliser(kernels.CPU)) })
}
