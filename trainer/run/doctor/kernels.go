package doctor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"

	"github.com/mgrpo/mgrpo/bindings/kernels"
	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/cuda"
	"github.com/mgrpo/mgrpo/trainer/run/selftest"
)

// Kernels tries every kernel with every instruction set and on every GPU of this machine. It prints a table of the
// largest differences from float64 and of the rates in values per second, on one core. The inputs are small, so a rate
// only shows whether a kernel is far too slow. failed reports whether a kernel fails. Nothing else may compute in this
// process at the same time.
func Kernels(ctx context.Context, w io.Writer) (failed bool, err error) {
	results, err := tryAll(ctx)
	if err != nil {
		return false, err
	}
	writeResults(w, results)
	return slices.ContainsFunc(results, selftest.Result.Failed), nil
}

func tryAll(ctx context.Context) (all []selftest.Result, err error) {
	best := kernels.ISA()
	defer func() { err = errors.Join(err, kernels.UseISA(best)) }()
	on := func(device string) error {
		d, err := torch.Open(device, 1)
		if err != nil {
			return err
		}
		results, err := tryOften(ctx, d)
		all = append(all, results...)
		return errors.Join(err, d.Close())
	}
	for _, isa := range kernels.ISAs() {
		if kernels.UseISA(isa) != nil {
			continue // the CPU does not have it
		}
		if err := on("cpu"); err != nil {
			return all, err
		}
	}
	gpus := listGPUs()
	if gpus.err != nil {
		return all, gpus.err
	}
	if len(gpus.devices) == 0 && cuda.Required() {
		return all, errors.New("no GPU was tried: this process does not see any, but MGRPO_REQUIRE_GPU is set")
	}
	for _, gpu := range gpus.devices {
		if err := on(fmt.Sprintf("cuda:%d", gpu.Index)); err != nil {
			return all, err
		}
	}
	return all, nil
}

// tryOften keeps the largest error and the best rate of several tries. A single try may be slow because of cold caches or
// an interruption.
func tryOften(ctx context.Context, d *torch.Device) (best []selftest.Result, err error) {
	const tries = 5
	for range tries {
		results, err := selftest.CheckKernels(ctx, d, selftest.Thorough)
		if err != nil {
			return nil, err
		}
		for i, r := range best {
			if results[i].Rate = max(results[i].Rate, r.Rate); r.Failed() {
				results[i] = r
			} else if !results[i].Failed() {
				results[i].Error = max(results[i].Error, r.Error)
			}
		}
		best = results
	}
	return best, nil
}

// writeResults prints a row for each kernel, with two columns for each place where it was tried, and then the failures.
func writeResults(w io.Writer, results []selftest.Result) {
	var places, names []string
	at := map[[2]string]selftest.Result{}
	for _, r := range results {
		if !slices.Contains(places, r.On) {
			places = append(places, r.On)
		}
		if !slices.Contains(names, r.Kernel) {
			names = append(names, r.Kernel)
		}
		at[[2]string{r.Kernel, r.On}] = r
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(t, "kernel")
	for _, on := range places {
		fmt.Fprintf(t, "\t%s\tM/s", on)
	}
	fmt.Fprintln(t)
	for _, name := range names {
		fmt.Fprint(t, name)
		for _, on := range places {
			switch r, tried := at[[2]string{name, on}]; {
			case !tried:
				fmt.Fprint(t, "\t\t")
			case r.Failed():
				fmt.Fprint(t, "\tFAIL\t")
			default:
				fmt.Fprintf(t, "\t%.1e\t%.1f", r.Error, r.Rate/1e6)
			}
		}
		fmt.Fprintln(t)
	}
	t.Flush()
	for _, r := range results {
		if r.Failed() {
			fmt.Fprintf(w, "\n%v\n-> %s\n", r, selftest.ReportAdvice)
		}
	}
}
