package selftest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/mgrpo/mgrpo/bindings/kernels"
	"github.com/mgrpo/mgrpo/bindings/torch"
)

var checkedDevices struct {
	sync.Mutex
	devices map[string]error
}

// CheckDevice tries the kernels of a device on Quick inputs, once, before the process first computes there. On the CPU it
// excludes instruction sets on which a kernel fails: from then on the process uses the best remaining one. It returns the
// failures. It returns an error if no instruction set remains, or if a kernel fails on a GPU. A device that cannot be
// opened, and a GPU for which this build has no kernels, are ignored: the code that computes there reports the error.
func CheckDevice(ctx context.Context, device string) (leftOut []Result, err error) {
	checkedDevices.Lock()
	defer checkedDevices.Unlock()
	if err, known := checkedDevices.devices[device]; known {
		return nil, err
	}
	d, err := torch.Open(device, 1) // several threads would wait for each other longer than they work
	if err != nil {
		return nil, nil
	}
	defer d.Close()
	if leftOut, err = tryISAs(ctx, d); ctx.Err() != nil {
		return leftOut, ctx.Err()
	}
	if checkedDevices.devices == nil {
		checkedDevices.devices = map[string]error{}
	}
	checkedDevices.devices[device] = err
	return leftOut, err
}

// tryISAs tries the kernels of each instruction set, the best first, until all kernels of one pass. It uses that one.
func tryISAs(ctx context.Context, d *torch.Device) (leftOut []Result, err error) {
	sets := kernels.ISAs()
	for _, isa := range sets[slices.Index(sets, kernels.ISA()):] {
		if !d.IsCUDA() && kernels.UseISA(isa) != nil {
			continue // the CPU does not have it
		}
		results, err := CheckKernels(ctx, d, Quick)
		if err != nil {
			return leftOut, err
		}
		results = slices.DeleteFunc(results, func(r Result) bool { return !r.Failed() })
		if leftOut = append(leftOut, results...); len(results) == 0 {
			return leftOut, nil
		}
		if d.IsCUDA() {
			break
		}
	}
	return leftOut, fmt.Errorf("%s computes wrong results: %w; use another device, and %s", d.Spec(), failures(leftOut), ReportAdvice)
}

// LeftOut describes the consequence of a failure that CheckDevice returns without an error.
func (r Result) LeftOut() string {
	return fmt.Sprintf("%v: %s is not used, the kernels use %s; %s", r, r.On, kernels.ISA(), ReportAdvice)
}

// ReportAdvice is the advice for a failure.
const ReportAdvice = "report this with the output of `mgrpo doctor --kernels`"

// failures joins the failures to an error.
func failures(results []Result) error {
	var errs []error
	for _, r := range results {
		errs = append(errs, errors.New(r.String()))
	}
	return errors.Join(errs...)
}
