package memory

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// columns lists the kinds in the order of the table, with names so short that the table fits into 80 columns.
var columns = []struct {
	kind Kind
	name string
}{{Weights, "weights"}, {Master, "master"}, {Adapters, "lora"}, {Gradients, "grads"}, {Moments, "moments"}, {Reference, "ref"}, {KVCache, "KV"},
	{States, "states"}, {Activations, "activ"}, {Overhead, "CUDA"}, {Routes, "routes"}, {Snapshot, "copy"}}

// Write prints a table with a row for each agent, without the columns that no agent needs, and then a line for each
// device: the needed and the free memory.
func Write(w io.Writer, needs []Need, free map[string]int64) {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	row := func(first string, cell func(kind Kind, name string) string, last string) {
		fmt.Fprint(table, first, "\t")
		for _, c := range columns {
			if sumOfKind(needs, c.kind) > 0 {
				fmt.Fprint(table, cell(c.kind, c.name), "\t")
			}
		}
		fmt.Fprint(table, last, "\t\n")
	}
	row("memory", func(_ Kind, name string) string { return name }, "total")
	for _, p := range needs {
		row(p.shortName(), func(kind Kind, _ string) string { return shortSize(p.Of(kind)) }, shortSize(p.sum(func(Part) bool { return true })))
	}
	table.Flush()
	for _, p := range needs {
		if p.Shares {
			fmt.Fprintf(w, "%s adapts weights that are held once%s\n", p.Agent, p.inOneBatch())
		}
	}
	for _, s := range Sums(needs, free) {
		fmt.Fprintln(w, s)
	}
}

func sumOfKind(needs []Need, kind Kind) (bytes int64) {
	for _, p := range needs {
		bytes += p.Of(kind)
	}
	return bytes
}

// String lists the parts of an agent's need.
func (n Need) String() string {
	if len(n.Parts) == 0 {
		return n.Agent + ": nothing, its model is hosted elsewhere"
	}
	var parts []string
	for _, part := range n.Parts {
		text := fmt.Sprintf("%s %s", part.Kind, Size(part.Bytes))
		if part.Device != n.Device {
			text += " on " + part.Device
		}
		parts = append(parts, text)
	}
	if n.Shares {
		parts = append(parts, "and the weights of another agent")
	}
	return fmt.Sprintf("%s on %s: %s", n.name(), n.Device, strings.Join(parts, ", "))
}

// name returns the agent's name, with the rank of a follower.
func (n Need) name() string {
	if n.Rank == 0 {
		return n.Agent
	}
	return fmt.Sprintf("%s/%d", n.Agent, n.Rank)
}

// shortName returns the name, cut so that the table fits into 80 columns.
func (n Need) shortName() string {
	name, agent := n.name(), n.Agent
	if over := len(name) - 11; over > 0 {
		name = agent[:max(1, len(agent)-over)] + name[len(agent):]
	}
	return name
}

// inOneBatch describes the shared engine of an agent that shares weights.
func (n Need) inOneBatch() string {
	if n.Of(KVCache) == 0 {
		return "" // the server samples
	}
	return ", and samples in one batch with the agents that share them"
}

// Size formats a number of bytes for people.
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

// shortSize formats a size in four or five characters: 12.3M, 512M.
func shortSize(bytes int64) string {
	if bytes == 0 {
		return "-"
	}
	text, unit, _ := strings.Cut(Size(bytes), " ")
	if whole, _, _ := strings.Cut(text, "."); len(whole) > 2 {
		text = whole
	}
	return text + strings.TrimSuffix(unit, "iB")
}
