package selftest

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/bindings/kernels"
	"github.com/mgrpo/mgrpo/bindings/kernels/emulated"
	"github.com/mgrpo/mgrpo/bindings/torch"
)

func open(t *testing.T) *torch.Device {
	t.Helper()
	d, err := torch.Open("cpu", 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// use runs a test on an instruction set, if this CPU has it.
func use(t *testing.T, isa string) {
	t.Helper()
	before := kernels.ISA()
	if err := kernels.UseISA(isa); err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { kernels.UseISA(before) })
}

// failed returns the names of the kernels that failed.
func failed(results []Result) (names []string) {
	for _, r := range results {
		if r.Failed() {
			names = append(names, r.Kernel)
		}
	}
	return names
}

func TestEveryKernelIsRight(t *testing.T) {
	d := open(t)
	for _, isa := range kernels.ISAs() {
		t.Run(isa, func(t *testing.T) {
			use(t, isa)
			for _, rows := range []int64{Quick, Thorough} {
				results, err := CheckKernels(t.Context(), d, rows)
				if err != nil {
					t.Fatal(err)
				}
				for _, r := range results {
					if r.Failed() || r.On != isa || !(r.Rate > 0) {
						t.Errorf("%v: %+v", r, r)
					}
				}
			}
		})
	}
}

// TestEmulatedGPUIsRight tries the CUDA kernels that an emulated GPU can run.
func TestEmulatedGPUIsRight(t *testing.T) {
	on := kernels.OfTable("emulated", emulated.Table(t))
	for real, bound := range map[torch.DType]float64{torch.Float32: gpuBound, torch.BFloat16: halfBound} {
		for _, k := range lossKernels() {
			tried := &trial{on: on, real: real, rows: Quick}
			if err := k.try(tried); err != nil || !(tried.worst <= bound) || tried.values == 0 {
				t.Errorf("%s, %v: %v from float64, %v", k.name, real, tried.worst, err)
			}
		}
	}
}

const wrongLibrary = "../../../build/lib/libmgrpo_kernels_wrong.so"

// wrongly runs the test of the same name in a process whose kernels are wrong where MGRPO_WRONG says so.
func wrongly(t *testing.T) (inside bool) {
	t.Helper()
	if strings.Contains(os.Getenv("LD_PRELOAD"), filepath.Base(wrongLibrary)) {
		return true
	}
	library, err := filepath.Abs(wrongLibrary)
	if err == nil {
		_, err = os.Stat(library)
	}
	if err != nil {
		t.Fatalf("%v (make native-tests builds it)", err)
	}
	program := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	program.Env = append(os.Environ(), "LD_PRELOAD="+library)
	out, err := program.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("%v\n%s", err, out)
	}
	return false
}

// TestWrongKernelsAreFound has each result of each kernel of the CPU be wrong in one value.
func TestWrongKernelsAreFound(t *testing.T) {
	if !wrongly(t) {
		return
	}
	source, err := os.ReadFile("../../../kernels/test/wrong/wrong.cpp")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`(?:spoil|exchange)\("([a-z0-9_ ]+)"`).FindAllStringSubmatch(string(source), -1)
	rounds := torch.SetRoundFactors(true)
	torch.SetRoundFactors(false)
	var results []string
	for _, m := range found {
		of := map[string]string{"matmul": "zen5", "matmul rounded": "avx512bf16"}[m[1]]
		if of != "" && (kernels.ISA() != "avx512" || !strings.Contains(torch.CPUFeatures(), of)) {
			continue // the product is LibTorch's, with AMX rounded
		}
		if strings.HasSuffix(m[1], " rounded") && !rounds {
			continue // no call asks for rounding
		}
		results = append(results, m[1])
	}
	if len(results) < 45 {
		t.Fatalf("%d results can be wrong: %q", len(results), results)
	}
	d := open(t)
	for _, result := range append(results, "") {
		t.Setenv("MGRPO_WRONG", result)
		all, err := CheckKernels(t.Context(), d, Quick)
		if err != nil {
			t.Fatal(err)
		}
		if names := failed(all); len(names) == 0 != (result == "") {
			t.Errorf("with a wrong %q these kernels fail: %q", result, names)
		}
	}
}

// TestCheckDevice leaves out the instruction sets on which a kernel is wrong, and no other.
func TestCheckDevice(t *testing.T) {
	if !wrongly(t) {
		return
	}
	d, best, sets := open(t), kernels.ISA(), kernels.ISAs()
	sets = sets[slices.Index(sets, best):]
	if len(sets) < 2 {
		t.Skip("this CPU has nothing to leave out")
	}
	t.Setenv("MGRPO_WRONG", "rms_norm")
	t.Setenv("MGRPO_WRONG_ISA", best)
	left, err := tryISAs(t.Context(), d)
	if err != nil || kernels.ISA() != sets[1] {
		t.Errorf("%v, %s is in use, want %s", err, kernels.ISA(), sets[1])
	}
	if len(left) != 1 || left[0].Kernel != "rms_norm" || left[0].On != best {
		t.Errorf("left out for %v", left)
	}
	if err := kernels.UseISA(best); err != nil {
		t.Fatal(err)
	}
	os.Unsetenv("MGRPO_WRONG_ISA") // wrong on all
	if _, err := tryISAs(t.Context(), d); err == nil || !strings.Contains(err.Error(), "rms_norm on portable") || !strings.Contains(err.Error(), "doctor --kernels") {
		t.Errorf("got %v", err)
	}
	if err := kernels.UseISA(best); err != nil {
		t.Fatal(err)
	}
	t.Setenv("MGRPO_WRONG", "")
	if left, err := tryISAs(t.Context(), d); err != nil || len(left) > 0 || kernels.ISA() != best {
		t.Errorf("%v, left out for %v", err, left)
	}
}
