// Command cubins compares the machine code of the CUDA kernels with kernels/cuda/cubins.txt: registers, spills, shared memory, resident
// blocks, the width of loads, and instructions in the inner loop. It does not need a GPU. A kernel that is worse than its row is an error.
// -update rewrites the rows. `make cubins` builds the library, fetches the tools and runs this command.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
)

func main() {
	library := flag.String("library", "build/lib/libmgrpo_kernels_cuda.so", "library of the kernels")
	tools := flag.String("tools", "build/cubin-tools/nvidia/cu13/bin", "folder with cuobjdump and nvdisasm")
	table := flag.String("table", "kernels/cuda/cubins.txt", "table of the expected figures")
	update := flag.Bool("update", false, "rewrite the table")
	flag.Parse()
	if err := run(context.Background(), *library, *tools, *table, *update); err != nil {
		fmt.Fprintln(os.Stderr, "cubins:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, library, tools, path string, update bool) error {
	compiler, kernels, err := examine(ctx, library, tools)
	if err != nil {
		return err
	}
	now := &table{compiler: compiler, kernels: kernels}
	if update {
		return os.WriteFile(path, now.text(), 0o644)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	was, err := parse(string(text))
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if was.compiler != compiler {
		fmt.Printf("cubins: %s has figures of %s, and this library was compiled by %s: not compared\n", path, was.compiler, compiler)
		return nil
	}
	if worse := was.compare(now); len(worse) > 0 {
		for _, line := range worse {
			fmt.Fprintln(os.Stderr, line)
		}
		return fmt.Errorf("%d kernels are worse than in %s. If that is intended: make cubins UPDATE=1, and commit the table", len(worse), path)
	}
	fmt.Printf("cubins: %d kernels are as good as in %s\n", len(kernels), path)
	return nil
}
