package doctor

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/bindings/kernels"
	"github.com/mgrpo/mgrpo/trainer/run/selftest"
)

// TestKernels runs this machine's kernels. The table has portable and the best instruction set, which is still in use afterwards.
func TestKernels(t *testing.T) {
	best := kernels.ISA()
	var out bytes.Buffer
	failed, err := Kernels(t.Context(), &out)
	if err != nil || failed || strings.Contains(out.String(), "FAIL") {
		t.Errorf("failed %v, %v:\n%s", failed, err, out.String())
	}
	head, rows, _ := strings.Cut(out.String(), "\n")
	if !strings.Contains(head, best) || !strings.Contains(head, "portable") || strings.Count(rows, "\n") < 30 || kernels.ISA() != best {
		t.Errorf("%s is in use, was %s:\n%s", kernels.ISA(), best, out.String())
	}
}

// TestWrongKernelsAreNamed: a kernel that fails is marked in the table, and a line below names it with its remedy.
func TestWrongKernelsAreNamed(t *testing.T) {
	var out bytes.Buffer
	writeResults(&out, []selftest.Result{{Kernel: "rope", On: "avx2", Error: 0.5, Bound: 1e-5}, {Kernel: "rope", On: "portable", Error: 1e-7, Bound: 1e-5, Rate: 2e6},
		{Kernel: "sample", On: "avx2", Err: errors.New("row 3")}})
	want := "kernel  avx2  M/s  portable  M/s\nrope    FAIL       1.0e-07   2.0\nsample  FAIL                 \n" +
		"\nrope on avx2 differs from float64 by 0.5 of its largest value, more than 1e-05\n-> report this with the output of `mgrpo doctor --kernels`\n" +
		"\nsample on avx2: row 3\n-> report this with the output of `mgrpo doctor --kernels`\n"
	if out.String() != want {
		t.Errorf("%q\nwant %q", out.String(), want)
	}
}

// TestRequiredGPU: with MGRPO_REQUIRE_GPU, both examinations fail on a machine without a GPU.
func TestRequiredGPU(t *testing.T) {
	if gpus := listGPUs(); len(gpus.devices) > 0 {
		t.Skip("there is a GPU")
	}
	t.Setenv("MGRPO_REQUIRE_GPU", "1")
	if failed, err := Kernels(t.Context(), io.Discard); err == nil || !strings.Contains(err.Error(), "does not see any") {
		t.Errorf("kernels: failed %v, %v", failed, err)
	}
	for _, o := range []Options{{}, {CPUOnly: "this is the program for CPUs"}} {
		if found := listGPUs().findings(o); len(found) != 1 || found[0].Status != Fail || found[0].What != "GPU" {
			t.Errorf("%+v: %+v", o, found)
		}
	}
}
