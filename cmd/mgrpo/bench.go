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
	"github.com/mgrpo/mgrpo/trainer/cgroup"
)

type benchCmd struct {
	Kernels benchKernelsCmd `cmd:"" help:"Measure every kernel, and compare it with PyTorch."`
	Rollout benchRolloutCmd `cmd:"" help:"Measure sampling, and compare it with transformers' generate and vLLM."`
	Learner benchLearnerCmd `cmd:"" help:"Measure an update, and compare it with transformers' forward and backward pass."`
	Step    benchStepCmd    `cmd:"" help:"Measure a whole step of GRPO, and compare it with TRL and CoMLRL."`

	Decode benchDecodeCmd `cmd:"" help:"Measure passes over GGUF files of each type, and compare them with llama.cpp."`

	Roofline benchRooflineCmd `cmd:"" help:"Compute the least time of a step on a GPU or a measured CPU from bytes, operations and launches."`

	Store benchStoreCmd `cmd:"" help:"Measure the store: bytes, round trips, latency, and the capacity of one Redis."`

	Compare benchCompareCmd `cmd:"" help:"Print two files of results side by side."`

	StoreClient benchStoreClientCmd `cmd:"" hidden:""`
}

func (benchCmd) Help() string {
	return `The suites measure this machine, print a table and write a JSON file; roofline only computes, and compare only prints.
Run them in the root of the repository, on a machine without other load. make bench-peers installs the peers.
docs/benchmarks.md explains the numbers.`
}

// benchFlags are the flags of every suite.
type benchFlags struct {
	Out     string `short:"o" placeholder:"FILE" help:"JSON file of the results; with --only, new rows replace old ones. Absent: ${results_file}."`
	Peers   bool   `negatable:"" default:"true" help:"Measure the peers too."`
	Only    string `placeholder:"NAME" help:"Measure only cases whose name contains NAME."`
	Device  string `default:"cpu" placeholder:"cpu|cuda:N" help:"Device on which mgrpo and its peers compute."`
	Threads int    `placeholder:"N" help:"OpenMP threads of mgrpo and of each peer; absent: one for each core."`
	Brief   bool   `help:"Take only three samples of each case."`
	Quick   bool   `help:"Use tiny shapes, two samples and no peers, to see that everything runs."`
	CSV     bool   `help:"Print the rows as CSV instead of a table."`
}

// options returns the flags with their defaults filled in.
func (f benchFlags) options() measure.Options {
	if f.Threads == 0 {
		f.Threads = cgroup.UsableCores().N
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
		return measure.WriteFile(path, r)
	}
	all, err := measure.Read(path)
	if errors.Is(err, fs.ErrNotExist) {
		return measure.WriteFile(path, r)
	}
	if err != nil {
		return err
	}
	all.Replace(r)
	return measure.WriteFile(path, all)
}

func (benchFlags) log(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

type benchKernelsCmd struct {
	benchFlags
	List  bool   `help:"Instead, list the kernels with the dimensions of their shapes; with --only, only kernels whose name contains NAME."`
	Shape string `placeholder:"NxM" help:"Measure the kernel that --only names with this shape, such as 4096x151936, instead of the suite's shapes."`
	DType string `name:"dtype" default:"" enum:",fp32,bf16" placeholder:"fp32|bf16" help:"With --shape: type of the numbers; absent: fp32."`
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
