package main

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// examine extracts the machine code of every architecture from the library, and returns the compiler and the figures of each kernel.
func examine(ctx context.Context, library, tools string) (compiler string, all []kernel, err error) {
	if library, err = filepath.Abs(library); err != nil {
		return "", nil, err
	}
	if tools, err = filepath.Abs(tools); err != nil {
		return "", nil, err
	}
	dir, err := os.MkdirTemp("", "cubins-")
	if err != nil {
		return "", nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if _, err := output(ctx, dir, nil, filepath.Join(tools, "cuobjdump"), "-xelf", "all", library); err != nil {
		return "", nil, err
	}
	cubins, err := filepath.Glob(filepath.Join(dir, "*.cubin"))
	if err != nil || len(cubins) == 0 {
		return "", nil, fmt.Errorf("%s has no machine code for GPUs (%v)", library, err)
	}
	for _, cubin := range cubins {
		of, found, err := examineCubin(ctx, tools, cubin)
		if err != nil {
			return "", nil, fmt.Errorf("%s: %w", filepath.Base(cubin), err)
		}
		if compiler != "" && of != compiler {
			return "", nil, fmt.Errorf("%s was compiled by %s, others by %s: build the library anew", filepath.Base(cubin), of, compiler)
		}
		compiler, all = of, append(all, found...)
	}
	return compiler, all, demangle(ctx, dir, all)
}

func output(ctx context.Context, dir string, stdin []byte, program string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir, cmd.Stdin = dir, bytes.NewReader(stdin)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w: %s", filepath.Base(program), strings.Join(args, " "), err, strings.TrimSpace(errs.String()))
	}
	return out, nil
}

// architecture matches the end of a cubin's name as cuobjdump writes it: library.7.sm_90a.cubin.
var architecture = regexp.MustCompile(`\.(sm_\d+[a-z]?)\.cubin$`)

func examineCubin(ctx context.Context, tools, cubin string) (compiler string, all []kernel, err error) {
	arch := architecture.FindStringSubmatch(cubin)
	if arch == nil {
		return "", nil, errors.New("its name does not end in .sm_NN.cubin, so its architecture is unknown")
	}
	used, err := output(ctx, "", nil, filepath.Join(tools, "cuobjdump"), "-res-usage", cubin)
	if err != nil {
		return "", nil, err
	}
	threads, err := maxThreads(cubin)
	if err != nil {
		return "", nil, err
	}
	code, err := output(ctx, "", nil, filepath.Join(tools, "nvdisasm"), "-json", cubin)
	if err != nil {
		return "", nil, err
	}
	compiler, functions, err := parseDisassembly(code)
	if err != nil {
		return "", nil, err
	}
	for _, f := range functions {
		k := kernel{arch: arch[1], name: f.Name, threads: threads[f.Name]}
		if !k.resources(used) {
			continue // a function that a kernel calls
		}
		if k.blocks, err = resident(k); err != nil {
			return "", nil, err
		}
		k.local = f.local()
		k.loop = f.innerLoop()
		all = append(all, k)
	}
	return compiler, all, nil
}

// resources reads the kernel's line of cuobjdump -res-usage, and reports whether there is one.
func (k *kernel) resources(used []byte) bool {
	line := regexp.MustCompile(`Function ` + regexp.QuoteMeta(k.name) + `:\s+REG:(\d+) STACK:(\d+) SHARED:(\d+)`).FindSubmatch(used)
	if line == nil {
		return false
	}
	for i, into := range []*int{&k.registers, &k.stack, &k.shared} {
		*into, _ = strconv.Atoi(string(line[i+1])) // digits
	}
	return true
}

// maxThreads returns, by kernel, the threads of a block that __launch_bounds__ promises: EIATTR_MAX_THREADS in a cubin's sections.
func maxThreads(cubin string) (map[string]int, error) {
	const (
		info     = ".nv.info."
		sized    = 4 // EIFMT_SVAL: the length follows
		promised = 5 // EIATTR_MAX_THREADS
	)
	f, err := elf.Open(cubin)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	out := map[string]int{}
	for _, s := range f.Sections {
		name, ok := strings.CutPrefix(s.Name, info)
		if !ok {
			continue
		}
		data, err := s.Data()
		if err != nil {
			return nil, err
		}
		for len(data) >= 4 {
			format, attribute, size := data[0], data[1], 0
			if format == sized {
				size = int(binary.LittleEndian.Uint16(data[2:]))
			}
			if len(data) < 4+size {
				return nil, fmt.Errorf("%s ends in the middle of an attribute", s.Name)
			}
			if value := data[4 : 4+size]; attribute == promised && size == 12 {
				out[name] = 1
				for i := 0; i < size; i += 4 {
					out[name] *= int(binary.LittleEndian.Uint32(value[i:]))
				}
			}
			data = data[4+size:]
		}
	}
	return out, nil
}

// function is a function in nvdisasm's JSON.
type function struct {
	Name  string        `json:"function-name"`
	Start int           `json:"start"` // bytes
	Code  []instruction `json:"sass-instructions"`
}

type instruction struct {
	Predicate string `json:"predicate"`
	Opcode    string `json:"opcode"`
	Operands  string `json:"operands"`
}

// parseDisassembly returns the compiler and the functions in nvdisasm's JSON.
func parseDisassembly(text []byte) (compiler string, functions []function, err error) {
	var head struct {
		Note struct {
			Version string `json:"tki_toolVersion"`
		} `json:".note.nv.tkinfo"`
	}
	var parts []json.RawMessage
	if err = json.Unmarshal(text, &parts); err == nil && len(parts) != 2 {
		err = fmt.Errorf("%d parts", len(parts))
	}
	if err == nil {
		err = errors.Join(json.Unmarshal(parts[0], &head), json.Unmarshal(parts[1], &functions))
	}
	if err != nil {
		return "", nil, fmt.Errorf("nvdisasm's JSON: %w", err)
	}
	_, version, ok := strings.Cut(head.Note.Version, ", V")
	if !ok {
		return "", nil, fmt.Errorf("nvdisasm's JSON has no version of ptxas in tki_toolVersion: %q", head.Note.Version)
	}
	return "ptxas " + version, functions, nil
}

// source matches the part of a mangled name that nvcc adds to the anonymous namespace of a file.
var source = regexp.MustCompile(`_GLOBAL__N__[0-9a-f]+_\d+_(\w+?)_cu_[0-9a-f]+`)

// demangle replaces mangled names by file:name<types>.
func demangle(ctx context.Context, dir string, all []kernel) error {
	var mangled strings.Builder
	for _, k := range all {
		fmt.Fprintln(&mangled, k.name)
	}
	out, err := output(ctx, dir, []byte(mangled.String()), "c++filt", "--no-params")
	if err != nil {
		return err
	}
	names := strings.Split(strings.TrimSpace(string(out)), "\n")
	if len(names) != len(all) {
		return fmt.Errorf("c++filt gave %d names for %d", len(names), len(all))
	}
	short := strings.NewReplacer("mgrpo::cuda::", "", "mgrpo::", "", "(anonymous namespace)::", "", "__nv_bfloat16", "bf16", "void ", "", ", ", ",", "(",
		"", ")", "")
	for i := range all {
		file := source.FindStringSubmatch(all[i].name)
		if file == nil {
			return fmt.Errorf("%s: no file name in the kernel's mangled name", all[i].name)
		}
		all[i].name = file[1] + ":" + short.Replace(names[i])
	}
	return nil
}
