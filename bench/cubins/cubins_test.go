package main

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// code parses lines of [@P] OPCODE operands into a function. A branch's operand is the address of its target.
func code(t *testing.T, start int, lines ...string) (f function) {
	t.Helper()
	f.Start = start
	for _, line := range lines {
		var i instruction
		words := strings.Fields(line)
		if strings.HasPrefix(words[0], "@") {
			i.Predicate, words = words[0], words[1:]
		}
		i.Opcode = words[0]
		if len(words) > 1 {
			i.Operands = words[1]
		}
		f.Code = append(f.Code, i)
	}
	return f
}

func TestInnerLoop(t *testing.T) {
	for name, c := range map[string]struct {
		start int
		lines []string
		want  loop
	}{
		"no loop": {0, []string{"LDG.E.128 R4,R2", "STG.E.128 R2,R4", "EXIT", "BRA 0x30"}, loop{}},
		"an outer loop's loads do not count": {0,
			[]string{"LDG.E.128 R0,R2", "LDG.E R0,R2", "FADD R0", "@P0 BRA 0x10", "@P1 BRA 0x0", "EXIT"}, loop{4, 0, 12}},
		// The loop tests whether rows are aligned. Then it makes one wide load, or four narrow
		// ones and more instructions; then 4 operations and a store.
		"a loop is counted on the path of aligned rows": {0x100, []string{
			"MOV R0", "ISETP P0", "@P0 BRA 0x190", // 0-2
			"LDG.E R4", "LDG.E R5", "LDG.E R6", "LDG.E R7", "FADD R0", "BRA 0x1a0", // 3-8
			"LDG.E.128 R4", // 9
			"FADD R4", "FADD R5", "FADD R6", "FADD R7", "STG.E.128 R2", "@P1 BRA 0x110", "EXIT"}, loop{16, 16, 9}},
		"the longer of two paths to the end counts": {0, []string{
			"LDG.E.64 R4", "@P0 BRA 0x50", "FADD R0", "FADD R0", "FADD R0", "STG.E.64 R4", "@P1 BRA 0x0", "EXIT"}, loop{8, 8, 14}},
		"narrow loads outside the wide path count":    {0, []string{"LDG.E R9", "LDG.E.128 R4", "STG.E.U16 R4", "@P1 BRA 0x0", "EXIT"}, loop{10, 2, 3.2}},
		"the final branch to itself is not a loop":    {0, []string{"LDG.E R4", "EXIT", "BRA 0x20"}, loop{}},
		"a path may end at a branch without a target": {0, []string{"LDG.E R4", "@P0 BRX R6,-0x100", "BRA.U UP0,0x0", "EXIT"}, loop{4, 0, 12}},
		"two branches back are one loop":              {0, []string{"LDG.E R4", "@P0 BRA 0x0", "FADD R0", "@P1 BRA 0x0", "EXIT"}, loop{4, 0, 16}},
		"the loop with the wider loads counts":        {0, []string{"LDG.E R4", "@P0 BRA 0x0", "LDG.E.128 R4", "@P1 BRA 0x20", "EXIT"}, loop{16, 0, 2}},
	} {
		if got := code(t, c.start, c.lines...).innerLoop(); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

// The values are from NVIDIA's occupancy calculator.
func TestResident(t *testing.T) {
	for _, c := range []struct {
		arch                       string
		threads, registers, shared int
		want                       int
	}{
		{"sm_90a", 256, 32, 0, 8}, {"sm_90a", 256, 33, 0, 6}, {"sm_90a", 256, 64, 0, 4}, {"sm_90a", 512, 64, 17408, 2}, {"sm_90a", 512, 40, 17408, 3},
		{"sm_90a", 128, 168, 0, 3}, {"sm_90a", 128, 255, 0, 2}, {"sm_90a", 32, 32, 0, 32}, {"sm_90a", 64, 24, 65536, 3}, {"sm_80", 64, 24, 65536, 2},
		{"sm_100", 1024, 65, 0, 0}, {"sm_80", 0, 32, 0, 0},
	} {
		if got, err := resident(kernel{arch: c.arch, threads: c.threads, registers: c.registers, shared: c.shared}); got != c.want || err != nil {
			t.Errorf("%+v: %d blocks, %v", c, got, err)
		}
	}
	if _, err := resident(kernel{arch: "sm_75"}); err == nil || !strings.Contains(err.Error(), "sm_75") {
		t.Errorf("an unknown architecture: %v", err)
	}
}

var row = kernel{name: "adamw:adamw_kernel", arch: "sm_90a", threads: 256, blocks: 6, registers: 40, shared: 1024, stack: 8, local: 3, loop: loop{16, 16, 20}}

// Each number that is worse than the row's is reported together with the row's number.
func TestCompare(t *testing.T) {
	was := &table{compiler: "ptxas 1", kernels: []kernel{row}}
	for want, change := range map[string]func(k *kernel){
		"blocks of 128 threads, the row has 256":                             func(k *kernel) { k.threads = 128 },
		"holds 5 blocks, the row has 6":                                      func(k *kernel) { k.blocks = 5 },
		"49 registers, the row has 40":                                       func(k *kernel) { k.registers = 49 },
		"1040 bytes of shared memory, the row has 1024":                      func(k *kernel) { k.shared = 1040 },
		"16 bytes of stack, the row has 8":                                   func(k *kernel) { k.stack = 16 },
		"4 loads and stores of local memory, the row has 3":                  func(k *kernel) { k.local = 4 },
		"loads 4 bytes at once, the row has 16":                              func(k *kernel) { k.loop.loadBytes = 4 },
		"stores 8 bytes at once, the row has 16":                             func(k *kernel) { k.loop.storeBytes = 8 },
		"22.5 instructions of the inner loop for 16 bytes, the row has 20.0": func(k *kernel) { k.loop.instructions = 22.5 },
		"is new":             func(k *kernel) { k.name = "adamw:other_kernel" },
		"has no such kernel": func(k *kernel) { k.arch = "sm_80" },
	} {
		k := row
		change(&k)
		got := strings.Join(was.compare(&table{kernels: []kernel{k}}), "\n")
		if !strings.Contains(got, want) || !strings.Contains(got, "adamw:adamw_kernel for sm_90a") && !strings.Contains(got, "is new") {
			t.Errorf("want %q reported, got %q", want, got)
		}
	}
	for _, change := range []func(k *kernel){
		func(*kernel) {}, func(k *kernel) { k.registers = 48 }, func(k *kernel) { k.loop.instructions = 21.9 },
		func(k *kernel) {
			*k = kernel{name: k.name, arch: k.arch, threads: 256, blocks: 8, registers: 20, loop: loop{16, 16, 3}}
		},
	} {
		k := row
		change(&k)
		if got := was.compare(&table{kernels: []kernel{k}}); len(got) > 0 {
			t.Errorf("%+v is not worse than %+v: %q", k, row, got)
		}
	}
}

// The committed table is in the format that text writes, parse reads it, and it has every kernel for every architecture.
func TestTable(t *testing.T) {
	text, err := os.ReadFile("../../kernels/cuda/cubins.txt")
	if err != nil {
		t.Fatal(err)
	}
	committed, err := parse(string(text))
	if err != nil {
		t.Fatal(err)
	}
	if got := string(committed.text()); got != string(text) {
		t.Errorf("kernels/cuda/cubins.txt differs from this program's output: make cubins UPDATE=1")
	}
	of := map[string][]string{}
	for _, k := range committed.kernels {
		of[k.name] = append(of[k.name], k.arch)
	}
	for name, archs := range of {
		if !slices.Equal(archs, []string{"sm_100", "sm_80", "sm_90a"}) {
			t.Errorf("%s has rows for %v", name, archs)
		}
	}
	for _, bad := range []string{"", "# compiled by ptxas 1\nadamw sm_80 1 2 3\n", "adamw sm_80 1 2 3 4 5 6 7 8 9\n"} {
		if _, err := parse(bad); err == nil {
			t.Errorf("%q is read", bad)
		}
	}
}

func TestParseDisassembly(t *testing.T) {
	const functions = `[{"function-name":"f","start":256,"length":16,"sass-instructions":[{"predicate":"@P1","opcode":"BRA","operands":"0x1c0"}]}]`
	compiler, got, err := parseDisassembly([]byte(`[{".note.nv.tkinfo":{"tki_toolVersion":"Cuda compilation tools, release 13.0, V13.0.88"}},` + functions + `]`))
	if err != nil || compiler != "ptxas 13.0.88" || len(got) != 1 || got[0].Start != 256 || got[0].Code[0].Predicate != "@P1" {
		t.Errorf("%q %+v %v", compiler, got, err)
	}
	for _, bad := range []string{"", "[]", `[{},` + functions + `]`, `[{},7]`} {
		if _, _, err := parseDisassembly([]byte(bad)); err == nil {
			t.Errorf("%q is read", bad)
		}
	}
}
