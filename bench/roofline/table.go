package roofline

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// Write prints the least time of each agent's step, part by part, on devices of kind d, and the least time of the team's step. Agents on
// different devices compute at once, and agents of one device take turns.
func Write(out io.Writer, d Device, steps []Step) {
	fmt.Fprintf(out, "%s: copies %.3g TB/s, products %.4g TFLOP/s in bf16, %.4g in fp32\n", d.Name, d.Copy/1e12, d.BF16/1e12, d.FP32/1e12)
	for _, s := range steps {
		w := s.Work
		fmt.Fprintf(out, "\n%s on %s: %s parameters, %.0f conversations of %d tokens, %d of them sampled\n", s.Agent.Name, strings.Join(s.Agent.Devices, ", "),
			parameters(s.Agent.Arch.Parameters()), w.Sequences(), w.Length(), w.Turns*w.Sampled)
		s.write(out)
	}
	devices := map[string]float64{}
	var names []string
	for _, s := range steps {
		for _, d := range slices.Compact(slices.Sorted(slices.Values(s.Agent.Devices))) {
			if !slices.Contains(names, d) {
				names = append(names, d)
			}
			devices[d] += s.Total().Seconds()
		}
	}
	longest := slices.MaxFunc(names, func(a, b string) int { return cmp.Compare(devices[a], devices[b]) })
	fmt.Fprintf(out, "\na step takes at least %s, on %s\n", seconds(devices[longest]), longest)
}

// parameters returns a number of parameters in the style of model names.
func parameters(n int64) string {
	if n < 1e8 {
		return fmt.Sprintf("%.2fM", float64(n)/1e6)
	}
	return fmt.Sprintf("%.2fB", float64(n)/1e9)
}

// write prints the parts, and the share of each limit in them.
func (s Step) write(out io.Writer) {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "part\ttime\tof step\tbytes\tFLOPs\tlaunches\t")
	total := s.Total()
	line := func(name string, of Time) {
		part := func(x float64) string { return fmt.Sprintf("%.0f %%", 100*x/max(of.Seconds(), 1e-30)) }
		fmt.Fprintf(t, "%s\t%s\t%.0f %%\t%s\t%s\t%s\t\n", name, seconds(of.Seconds()), 100*of.Seconds()/total.Seconds(), part(of.Bytes), part(of.FLOPs),
			part(of.Launches))
	}
	for _, p := range s.Parts {
		if p.Seconds() > 0 {
			line(p.Name, p.Time)
		}
	}
	line("all", total)
	t.Flush()
}

// seconds returns a readable duration.
func seconds(s float64) string {
	d := time.Duration(s * 1e9)
	switch {
	case d >= time.Minute:
		return d.Round(time.Second).String()
	case d >= time.Second:
		return d.Round(10 * time.Millisecond).String()
	case d >= time.Millisecond:
		return d.Round(10 * time.Microsecond).String()
	}
	return d.Round(10 * time.Nanosecond).String()
}
