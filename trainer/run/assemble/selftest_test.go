package assemble

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/bindings/kernels"
	"github.com/mgrpo/mgrpo/trainer/config"
)

// TestWrongKernelIsLeftOut starts processes whose rms_norm is wrong (kernels/test/wrong). If it is wrong on
// the best instruction set only, the self-test disables and names that set; if it is wrong on all, it fails.
func TestWrongKernelIsLeftOut(t *testing.T) {
	best := kernels.ISA()
	if os.Getenv("MGRPO_WRONG") == "" {
		library, err := filepath.Abs("../../../build/lib/libmgrpo_kernels_wrong.so")
		if err != nil {
			t.Fatal(err)
		}
		for _, isa := range []string{"MGRPO_WRONG_ISA=" + best, "ALL="} {
			program := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
			program.Env = append(os.Environ(), "LD_PRELOAD="+library, "MGRPO_WRONG=rms_norm", isa)
			if out, err := program.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
				t.Errorf("%s: %v (make native-tests builds the library)\n%s", isa, err, out)
			}
		}
		return
	}
	var notes []string
	err := SelfTest(t.Context(), &config.Config{}, &config.Agent{Name: "planner", Device: "cpu"}, func(text string) { notes = append(notes, text) })
	if os.Getenv("MGRPO_WRONG_ISA") == "" || best == "portable" {
		if err == nil || !strings.Contains(err.Error(), "agents.planner.device: cpu computes wrong results: rms_norm on "+best) {
			t.Errorf("got %v", err)
		}
		return
	}
	if note := strings.Join(notes, "\n"); err != nil || kernels.ISA() == best || strings.Count(note, best+" is not used, the kernels use "+kernels.ISA()) != 1 || !strings.Contains(note, "rms_norm on "+best) {
		t.Errorf("%v, %s is in use, notes: %s", err, kernels.ISA(), note)
	}
}
