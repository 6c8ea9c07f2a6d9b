// Command document writes docs/benchmarks.md, README's table of peers, and the table of checks in docs/models.md from the results in
// bench/results. Run it in the root of the repository:
//
//	go run ./bench/document
package main

import (
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/mgrpo/mgrpo/bench/kernels"
	"github.com/mgrpo/mgrpo/bench/measure"
	"github.com/mgrpo/mgrpo/bench/store"
)

func main() {
	if err := write(); err != nil {
		fmt.Fprintf(os.Stderr, "document: %v\n", err)
		os.Exit(1)
	}
}

func write() error {
	files, err := document(".")
	if err != nil {
		return err
	}
	for name, text := range files {
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
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
	e, err := readEvidence(root)
	if err != nil {
		return nil, err
	}
	files := map[string]string{}
	for name, data := range map[string]any{"docs/benchmarks.md": machines, "docs/models.md": e, "README.md": machines} {
		if files[name], err = text(path.Base(name)+".tmpl", data); err != nil {
			return nil, err
		}
	}
	for _, name := range []string{"docs/models.md", "README.md"} {
		if files[name], err = withPart(root, name, files[name]); err != nil {
			return nil, err
		}
	}
	return files, nil
}

// Marks around a part of a document that this command writes.
const (
	writtenBegin = "<!-- written by go run ./bench/document -->\n"
	writtenEnd   = "<!-- end of what is written -->\n"
)

// withPart returns a document of the repository with the part between the marks replaced.
func withPart(root, name, part string) (string, error) {
	data, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		return "", err
	}
	before, rest, begins := strings.Cut(string(data), writtenBegin)
	_, after, ends := strings.Cut(rest, writtenEnd)
	if !begins || !ends {
		return "", fmt.Errorf("%s lacks the marks around the part that bench/document writes", name)
	}
	return before + writtenBegin + part + writtenEnd + after, nil
}

// machines are in the order of their slugs.
type machines []*machine

// machine holds all results of one machine.
type machine struct {
	Slug    string
	Results []*measure.Results // in the order of suites
	Store   *store.Results     // nil: not measured
	Hot     *hotKernels        // nil: not a GPU, or not measured
}

// Is returns the description of the machine in its first results.
func (m *machine) Is() measure.Machine {
	if len(m.Results) == 0 {
		return m.Store.Machine
	}
	return m.Results[0].Machine
}

func readMachines(dir string) (machines, error) {
	bySlug := map[string]*machine{}
	for _, suite := range append(suites, "store") {
		paths, err := filepath.Glob(filepath.Join(dir, suite+"-*.json"))
		if err != nil {
			return nil, err
		}
		for _, file := range paths {
			slug := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(file), suite+"-"), ".json")
			m := bySlug[slug]
			if m == nil {
				m = &machine{Slug: slug}
				bySlug[slug] = m
			}
			if err := m.read(suite, file); err != nil {
				return nil, err
			}
		}
	}
	var all machines
	for _, slug := range slices.Sorted(maps.Keys(bySlug)) {
		m := bySlug[slug]
		var err error
		if m.Hot, err = readHotKernels(dir, slug); err != nil {
			return nil, err
		}
		all = append(all, m)
	}
	return all, nil
}

func (m *machine) read(suite, file string) (err error) {
	if suite == "store" {
		m.Store, err = measure.ReadFile[store.Results](file)
		return err
	}
	r, err := measure.Read(file)
	if err != nil {
		return err
	}
	if suite == "kernels" {
		cases := casesOf(r)
		// Rows of cases that no longer exist are left out.
		r.Rows = slices.DeleteFunc(r.Rows, func(row measure.Row) bool { return !slices.ContainsFunc(cases, row.SameCase) })
	}
	m.Results = append(m.Results, r)
	return nil
}

// casesOf returns the current cases of the suite of kernels on such a machine.
func casesOf(r *measure.Results) []measure.Row {
	if r.Machine.GPU != "" {
		return kernels.OnGPU()
	}
	return kernels.OnCPU()
}
