// Command document writes docs/benchmarks.md, its pictures, README's table of peers, and the table of checks in docs/models.md from the
// results in bench/results. Run it in the root of the repository:
//
//	go run ./bench/document
package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/mgrpo/mgrpo/bench/kernels"
	"github.com/mgrpo/mgrpo/bench/measure"
	"github.com/mgrpo/mgrpo/bench/store"
)

func main() {
	if err := write("."); err != nil {
		fmt.Fprintf(os.Stderr, "document: %v\n", err)
		os.Exit(1)
	}
}

func write(root string) error {
	files, err := document(root)
	if err != nil {
		return err
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// suites holds the names in the order of the document.
var suites = []string{"kernels", "rollout", "learner", "step", "decode"}

// document reads the results and returns the files that it writes, by their paths in the repository.
func document(root string) (map[string]string, error) {
	machines, err := readMachines(filepath.Join(root, "bench", "results"))
	if err != nil {
		return nil, err
	}
	checked, err := models(root)
	if err != nil {
		return nil, err
	}
	chosen, err := summary(machines)
	if err != nil {
		return nil, err
	}
	readme, err := withPart(root, "README.md", chosen)
	if err != nil {
		return nil, err
	}
	files := map[string]string{"docs/benchmarks.md": text(machines), "docs/models.md": checked, "README.md": readme}
	for _, m := range machines {
		for _, f := range m.figures() {
			files["docs/"+f.file] = f.svg()
		}
	}
	return files, nil
}

// machine holds all results of one machine.
type machine struct {
	slug    string
	results []*measure.Results // in the order of suites
	store   *store.Results     // nil: not measured
	hot     *hotKernels        // nil: not a GPU, or not measured
}

// is returns the description of the machine in its first results.
func (m *machine) is() measure.Machine {
	if len(m.results) == 0 {
		return m.store.Machine
	}
	return m.results[0].Machine
}

func readMachines(dir string) ([]*machine, error) {
	bySlug := map[string]*machine{}
	for _, suite := range append(suites, "store") {
		paths, err := filepath.Glob(filepath.Join(dir, suite+"-*.json"))
		if err != nil {
			return nil, err
		}
		for _, path := range paths {
			slug := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(path), suite+"-"), ".json")
			m := bySlug[slug]
			if m == nil {
				m = &machine{slug: slug}
				bySlug[slug] = m
			}
			if err := m.read(suite, path); err != nil {
				return nil, err
			}
		}
	}
	var all []*machine
	for _, slug := range slices.Sorted(maps.Keys(bySlug)) {
		m := bySlug[slug]
		var err error
		if m.hot, err = readHotKernels(dir, slug); err != nil {
			return nil, err
		}
		all = append(all, m)
	}
	return all, nil
}

func (m *machine) read(suite, path string) (err error) {
	if suite == "store" {
		m.store, err = measure.ReadFile[store.Results](path)
		return err
	}
	r, err := measure.Read(path)
	if err != nil {
		return err
	}
	if suite == "kernels" {
		cases := casesOf(r)
		// Rows of cases that no longer exist are left out.
		r.Rows = slices.DeleteFunc(r.Rows, func(row measure.Row) bool { return !slices.ContainsFunc(cases, row.SameCase) })
	}
	m.results = append(m.results, r)
	return nil
}

// casesOf returns the current cases of the suite of kernels on such a machine.
func casesOf(r *measure.Results) []measure.Row {
	if r.Machine.GPU != "" {
		return kernels.OnGPU()
	}
	return kernels.OnCPU()
}
