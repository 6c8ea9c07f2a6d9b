package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/mgrpo/mgrpo/bench/kernels"
	"github.com/mgrpo/mgrpo/bench/measure"
	"github.com/mgrpo/mgrpo/trainer/engine/cgroup"
)

type benchCmd struct {
	Kernels benchKernelsCmd `cmd:"" help:"Every kernel, compared with PyTorch."`
	Rollout benchRolloutCmd `cmd:"" help:"Sampling, compared with transformers' generate."`
	Learner benchLearnerCmd `cmd:"" help:"An update, compared with transformers' forward and backward pass."`
	Step    benchStepCmd    `cmd:"" help:"A whole step of GRPO, compared with TRL."`

	Decode benchDecodeCmd `cmd:"" help:"Passes over GGUF files of each type, compared with llama.cpp."`

	Roofline benchRooflineCmd `cmd:"" help:"How long a step takes at least on a GPU, from bytes, operations and launches."`

	Store benchStoreCmd `cmd:"" help:"The store: bytes, round trips, latency, and the capacity of one Redis."`

	Compare benchCompareCmd `cmd:"" help:"Two files of results, side by side."`

	StoreClient benchStoreClientCmd `cmd:"" hidden:""`
}

func (benchCmd) Help() string {
	return `Measures this machine: prints a table and writes JSON. Run it in the root of the repository on a machine that does
nothing else. The peers are set up by make bench-peers; docs/benchmarks.md says what the numbers mean.`
}

// benchFlags are the flags of every suite.
type benchFlags struct {
	Out     string `placeholder:"FILE" help:"Results, rewritten after every row (bench/results/SUITE-MACHINE.json; none with --quick or --only). With --only its rows replace those of the file, if there is one."`
	Peers   bool   `negatable:"" default:"true" help:"Measure the peers too."`
	Only    string `placeholder:"NAME" help:"Only cases whose name contains this."`
	Device  string `default:"cpu" placeholder:"cpu|cuda:N" help:"Where every provider computes."`
	Threads int    `placeholder:"N" help:"OpenMP threads of every provider (the number of cores)."`
	Brief   bool   `help:"Three samples of each provider."`
	Quick   bool   `help:"Tiny shapes, two samples, no peers: shows that everything runs, measures nothing."`
	CSV     bool   `help:"Print the rows as CSV in place of the table."`
}

// options returns the flags with their defaults filled in.
func (f benchFlags) options() measure.Options {
	if f.Threads == 0 {
		f.Threads = cgroup.Count().N
	}
	if f.Device == "cuda" {
		f.Device = "cuda:0"
	}
	return measure.Options{Root: ".", Commit: version, Device: f.Device, Threads: f.Threads, Peers: f.Peers && !f.Quick, Quick: f.Quick, Brief: f.Brief,
		Only: f.Only, Log: f.log, Save: f.save}
}

// suite runs a suite and prints its results, also when it ended early.
func (f benchFlags) suite(run func(o measure.Options) (*measure.Results, error)) error {
	results, err := run(f.options())
	if results != nil && len(results.Rows) > 0 {
		if f.CSV {
			return errors.Join(err, results.CSV(os.Stdout))
		}
		fmt.Print(results.Table())
	}
	return err
}

// save writes the finished rows. Rows of a part of a suite replace those in the file of the whole suite.
func (f benchFlags) save(r *measure.Results) error {
	path := f.Out
	if path == "" {
		if f.Quick || f.Only != "" {
			return nil
		}
		path = measure.Path(r.Suite, r.Machine)
	}
	if f.Only == "" {
		return r.Write(path)
	}
	all, err := measure.Read(path)
	if errors.Is(err, fs.ErrNotExist) {
		return r.Write(path)
	}
	if err != nil {
		return err
	}
	all.Replace(r)
	return all.Write(path)
}

func (benchFlags) log(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

type benchKernelsCmd struct {
	benchFlags
	List  bool   `help:"Instead, list the kernels with the numbers that a shape has; with --only, those whose name contains it."`
	Shape string `placeholder:"NxM" help:"Sizes in place of the suite's, for the kernel that --only names: 4096x151936."`
	DType string `name:"dtype" default:"" enum:",fp32,bf16" placeholder:"fp32|bf16" help:"Type of the numbers with --shape (fp32)."`
}

func (c *benchKernelsCmd) Run(ctx context.Context) error {
	if c.List {
		if c.Shape != "" || c.DType != "" || c.CSV {
			return errors.New("--list only lists kernels: leave out --shape, --dtype and --csv")
		}
		list := kernels.List(c.Only)
		if list == "" {
			return fmt.Errorf("no kernel's name contains %q; mgrpo bench kernels --list has all names", c.Only)
		}
		fmt.Print(list)
		return nil
	}
	var shape kernels.Shape
	switch {
	case c.Shape != "":
		var err error
		if shape, err = kernels.ParseShape(c.Only, c.Shape, cmp.Or(c.DType, "fp32")); err != nil {
			return err
		}
	case c.DType != "":
		return errors.New("--dtype is the type for --shape: give a shape, too")
	}
	return c.suite(func(o measure.Options) (*measure.Results, error) { return kernels.Run(ctx, o, shape) })
}
