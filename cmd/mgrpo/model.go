package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/mgrpo/mgrpo/trainer/engine/policy"
	"github.com/mgrpo/mgrpo/trainer/standalone"
)

// modelFlags are shared by the commands that compute with one checkpoint.
type modelFlags struct{ optionalModelFlags }

// Validate checks the options. kong calls it before the command runs.
func (f modelFlags) Validate() error {
	if f.Model == "" {
		return errors.New("missing flags: --model=MODEL")
	}
	return nil
}

// optionalModelFlags are the model flags of commands that also work without a model.
type optionalModelFlags struct {
	Model   string `placeholder:"MODEL" help:"Hugging Face folder, GGUF file, or ${hub_model}."`
	Adapter string `placeholder:"DIR" help:"Folder of a LoRA adapter in PEFT's format, such as an agent's in a checkpoint of a run that trains adapters."`
	Device  string `default:"cpu" help:"cpu, cuda or cuda:N."`
	DType   string `name:"dtype" default:"auto" enum:"auto,fp32,bf16,quantised" help:"Type of the weights: ${weight_types}."`
	Threads int    `placeholder:"N" help:"CPU threads; absent: one for each core."`
}

// open loads the checkpoint.
func (f optionalModelFlags) open(ctx context.Context, length int) (*standalone.Checkpoint, error) {
	if f.Threads < 0 || length < 0 {
		return nil, errors.New("--threads and --context must be 0 or more")
	}
	opt := standalone.Options{Device: f.Device, Threads: f.Threads, DType: f.DType, Context: length, Adapter: f.Adapter}
	checkpoint, err := standalone.Open(ctx, f.Model, opt)
	if err != nil {
		return nil, err
	}
	for _, note := range checkpoint.Notes {
		fmt.Fprintln(os.Stderr, "note:", note)
	}
	return checkpoint, nil
}

// samplingFlags are the settings for drawing tokens.
type samplingFlags struct {
	Temperature float64  `default:"1" help:"Divides the logits; 0 is greedy."`
	TopK        int      `placeholder:"K" help:"Sample from the K most likely tokens."`
	TopP        float64  `placeholder:"P" help:"Sample from the smallest set of tokens whose total probability is at least P."`
	MinP        float64  `placeholder:"P" help:"Leave out tokens with less than P times the probability of the most likely token."`
	MaxNew      int      `default:"512" help:"Largest number of tokens of an answer."`
	Stop        []string `sep:"none" placeholder:"TEXT" help:"End an answer at TEXT. May be repeated."`
	Seed        uint64   `help:"Seed of the random numbers." default:"0"`
}

// sampling checks the flags before a model is loaded; stop tokens are the model's own.
func (f samplingFlags) sampling() (policy.Sampling, error) {
	for _, c := range []struct {
		ok         bool
		flag, want string
	}{
		{f.Temperature == 0 || f.Temperature >= policy.LeastTemperature && f.Temperature <= 1e6, "--temperature", "0 (greedy), or at least 1e-6"},
		{f.TopK >= 0 && f.TopK < 1<<31, "--top-k", "0 (off) or more"},
		{f.TopP >= 0 && f.TopP <= 1, "--top-p", "from 0 (off) to 1"},
		{f.MinP >= 0 && f.MinP <= 1, "--min-p", "from 0 (off) to 1"},
		{f.MaxNew >= 1 && f.MaxNew <= 1<<24, "--max-new", "1 or more"},
	} {
		if !c.ok {
			return policy.Sampling{}, fmt.Errorf("%s is out of range: want %s", c.flag, c.want)
		}
	}
	for _, s := range f.Stop {
		if s == "" {
			return policy.Sampling{}, errors.New("--stop is empty: want the text that ends an answer")
		}
	}
	return policy.Sampling{Temperature: f.Temperature, TopK: f.TopK, TopP: f.TopP, MinP: f.MinP, MaxNew: f.MaxNew, StopStrings: f.Stop}, nil
}

// linesFlags are shared by the commands that read and write JSON lines.
type linesFlags struct {
	Input string `short:"i" default:"-" placeholder:"FILE" help:"Read JSON lines from FILE instead of standard input."`
	Out   string `short:"o" default:"-" placeholder:"FILE" help:"Write JSON lines to FILE instead of standard output."`
}

// convert opens the input and the output, calls work with them, and closes them.
func (f linesFlags) convert(work func(r io.Reader, w io.Writer) error) (err error) {
	in, out := os.Stdin, os.Stdout
	if f.Input != "-" {
		if in, err = os.Open(f.Input); err != nil {
			return err
		}
		defer in.Close()
	}
	if f.Out != "-" {
		from, _ := in.Stat()
		if to, err := os.Stat(f.Out); err == nil && from != nil && from.Mode().IsRegular() && os.SameFile(from, to) {
			return fmt.Errorf("--out: %s is also the input: choose another file", f.Out)
		}
		if out, err = os.Create(f.Out); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, out.Close()) }()
	}
	return work(in, out)
}
