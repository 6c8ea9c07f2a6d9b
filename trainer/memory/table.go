package memory

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// columns are the kinds in the order of a table, with short names: all of them fit into 80 columns.
var columns = []struct {
	kind Kind
	name string
}{{Weights, "weights"}, {Master, "master"}, {Gradients, "grads"}, {Moments, "moments"}, {Reference, "ref"}, {KVCache, "KV"},
	{Activations, "activ"}, {Snapshot, "snapshot"}}

// Write prints a row an agent, without the parts that no agent has, and a line a device: what is needed there and
// what is free.
func Write(w io.Writer, plans []Plan, free map[string]int64) {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	row := func(first string, cell func(kind Kind, name string) string, last string) {
		fmt.Fprintf(table, "%.11s\t", first)
		for _, c := range columns {
			if all(plans, c.kind) > 0 {
				fmt.Fprint(table, cell(c.kind, c.name), "\t")
			}
		}
		fmt.Fprint(table, last, "\t\n")
	}
	row("memory", func(_ Kind, name string) string { return name }, "total")
	for _, p := range plans {
		row(p.Agent, func(kind Kind, _ string) string { return short(p.Of(kind)) }, short(p.sum(func(Part) bool { return true })))
	}
	table.Flush()
	for _, s := range Sums(plans, free) {
		fmt.Fprintln(w, s)
	}
}

func all(plans []Plan, kind Kind) (bytes int64) {
	for _, p := range plans {
		bytes += p.Of(kind)
	}
	return bytes
}

// String lists what an agent's memory goes to.
func (p Plan) String() string {
	var parts []string
	for _, part := range p.Parts {
		text := fmt.Sprintf("%s %s", part.Kind, Size(part.Bytes))
		if part.Device != p.Device {
			text += " on " + part.Device
		}
		parts = append(parts, text)
	}
	return fmt.Sprintf("%s on %s: %s", p.Agent, p.Device, strings.Join(parts, ", "))
}

// Size is a number of bytes for people.
func Size(bytes int64) string {
	value, unit := float64(bytes), 0
	units := []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB"}
	for value >= 1024 && unit < len(units)-1 {
		value, unit = value/1024, unit+1
	}
	if unit == 0 {
		return fmt.Sprintf("%d B", bytes)
	}
	return fmt.Sprintf("%.1f %s", value, units[unit])
}

// short is Size in four or five characters: 12.3M, 512M.
func short(bytes int64) string {
	if bytes == 0 {
		return "-"
	}
	text, unit, _ := strings.Cut(Size(bytes), " ")
	if whole, _, _ := strings.Cut(text, "."); len(whole) > 2 {
		text = whole
	}
	return text + strings.TrimSuffix(unit, "iB")
}
