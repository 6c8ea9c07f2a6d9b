package measure

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

// Results holds one run of one suite on one machine, as in a file of bench/results.
type Results struct {
	Suite      string   `json:"suite"`
	Date       string   `json:"date"` // of the start, UTC
	Machine    Machine  `json:"machine"`
	LoadBefore float64  `json:"load_before"` // the machine's load average when the run began
	Ceilings   Ceilings `json:"ceilings"`
	Rows       []Row    `json:"rows"`
}

// Path returns the file for results of a suite on a machine.
func Path(suite string, m Machine) string {
	return filepath.Join("bench", "results", suite+"-"+m.Slug()+".json")
}

// WriteFile replaces the file at path by results of any suite, as JSON.
func WriteFile(path string, results any) error {
	data, err := json.MarshalIndent(results, "", " ")
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	part := path + ".part"
	if err := os.WriteFile(part, append(data, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(part, path)
}

// Read reads the file of a suite.
func Read(path string) (*Results, error) { return ReadFile[Results](path) }

// ReadFile reads a file of WriteFile. An unknown key is an error, because the results are of another version.
func ReadFile[T any](path string) (*T, error) {
	return read[T](path, (*json.Decoder).DisallowUnknownFields)
}

// ReadPart reads the keys of T from a JSON file that may have others.
func ReadPart[T any](path string) (*T, error) { return read[T](path, func(*json.Decoder) {}) }

func read[T any](path string, set func(*json.Decoder)) (*T, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	d, r := json.NewDecoder(file), new(T)
	set(d)
	if err := d.Decode(r); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return r, nil
}

// Replace replaces rows by rows of the same case in `by`, which was measured on the same machine. Rows of another run keep their own
// commit, date and ceilings.
func (r *Results) Replace(by *Results) {
	for _, row := range by.Rows {
		if by.Date != r.Date {
			row.Again = &Again{by.Date, by.Machine.Commit, by.LoadBefore}
		}
		same := func(x Row) bool {
			return x.Name == row.Name && x.Shape == row.Shape && x.DType == row.DType && x.Cache == row.Cache
		}
		if i := slices.IndexFunc(r.Rows, same); i >= 0 {
			r.Rows[i] = row
		} else {
			r.Rows = append(r.Rows, row)
		}
	}
}

// Table returns the rows as text, with one line for each provider.
func (r *Results) Table() string {
	var b strings.Builder
	m, c := r.Machine, r.Ceilings
	fmt.Fprintf(&b, "%s, %d cores, %d threads, %s, LibTorch %s, commit %s, load %.2f\n", m.CPU, m.Cores, m.Threads, m.ISA, m.LibTorch, m.Commit, r.LoadBefore)
	fmt.Fprintf(&b, "copy %.1f GB/s, read %.1f GB/s, in cache %.0f and %.0f GB/s, gemm %.0f GFLOP/s, in bf16 %.0f\n\n",
		c.Copy.Median, c.Read.Median, c.CachedCopy.Median, c.CachedRead.Median, c.GEMM.Median, c.GEMMBF16.Median)
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "case\tshape\tcache\tprovider\tmedian\tp20\tp80\tGB/s\tGFLOP/s\t% of floor\tx ours\terror\textra")
	for _, row := range r.Rows {
		name, shape, cache := row.Name, row.Shape+" "+row.DType, string(row.Cache)
		for _, p := range row.Providers {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t", name, shape, cache, p.Name)
			name, shape, cache = "", "", ""
			if p.Status != "ok" {
				fmt.Fprintln(w, p.Status)
				continue
			}
			ratio, share := "", "-"
			if p.PercentOfFloor > 0 {
				share = fmt.Sprintf("%.0f", p.PercentOfFloor)
			}
			if x, ok := row.Ratio[p.Name]; ok {
				ratio = fmt.Sprintf("%.2f", x)
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%.1f\t%.1f\t%s\t%s\t%.1e\t%s\n", Seconds(p.Median), Seconds(p.P20), Seconds(p.P80),
				p.GBps, p.GFLOPs, share, ratio, p.MaxError, Bytes(p.PeakExtraBytes))
		}
		for _, t := range row.Targets {
			fmt.Fprintf(w, "\t\t\ttarget\t%s\n", t)
		}
	}
	w.Flush()
	return b.String()
}

// CSV writes a header and a line for each provider of each row. Times are in seconds, and empty if a provider has none.
func (r *Results) CSV(to io.Writer) error {
	w := csv.NewWriter(to)
	w.Write([]string{"name", "shape", "dtype", "cache", "provider", "status", "median_s", "p20_s", "p80_s", "gbps", "gflops", "percent_of_floor",
		"ratio_to_ours", "max_error", "peak_extra_bytes"})
	for _, row := range r.Rows {
		for _, p := range row.Providers {
			line := []string{row.Name, row.Shape, row.DType, string(row.Cache), p.Name, p.Status}
			for _, v := range []float64{p.Median, p.P20, p.P80, p.GBps, p.GFLOPs, p.PercentOfFloor, row.Ratio[p.Name], p.MaxError, float64(p.PeakExtraBytes)} {
				text := ""
				if p.Status == "ok" && v != 0 {
					text = strconv.FormatFloat(v, 'g', 6, 64)
				}
				line = append(line, text)
			}
			w.Write(line)
		}
	}
	w.Flush()
	return w.Error()
}

func (t Target) String() string {
	switch {
	case t.Value == nil:
		return t.Text + ": not measured"
	case t.Met:
		return fmt.Sprintf("%s: %.3g, met", t.Text, *t.Value)
	}
	return fmt.Sprintf("%s: %.3g, missed", t.Text, *t.Value)
}

// summary returns a row as one line.
func summary(row Row) string {
	line := fmt.Sprintf("%s %s %s:", row.Name, row.Shape, row.Cache)
	for _, p := range row.Providers {
		if p.Status == "ok" {
			line += fmt.Sprintf(" %s %s", p.Name, Seconds(p.Median))
		} else {
			line += fmt.Sprintf(" %s (%.60s)", p.Name, p.Status)
		}
	}
	return line
}

// Seconds returns a readable time with three digits.
func Seconds(s float64) string {
	switch {
	case s < 1e-3:
		return fmt.Sprintf("%.3g µs", s*1e6)
	case s < 1:
		return fmt.Sprintf("%.3g ms", s*1e3)
	}
	return fmt.Sprintf("%.3g s", s)
}

// Bytes returns a readable size, or "" for 0.
func Bytes(n int64) string {
	switch {
	case n == 0:
		return ""
	case n < 10<<20:
		return fmt.Sprintf("%.3g KiB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%.0f MiB", float64(n)/(1<<20))
}
