package memory

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Sum is what agents need together in the memory of one device.
type Sum struct {
	Device string
	Agents []string
	Needed int64 // bytes
	Free   int64 // bytes; -1: not known
}

// Sums adds plans up by device, in the order in which the plans name them. free is the free memory of each device
// that is known, in bytes.
func Sums(plans []Plan, free map[string]int64) []Sum {
	var sums []Sum
	for _, p := range plans {
		for _, part := range p.Parts {
			i := slices.IndexFunc(sums, func(s Sum) bool { return s.Device == part.Device })
			if i < 0 {
				here, known := free[part.Device]
				if !known {
					here = -1
				}
				i, sums = len(sums), append(sums, Sum{Device: part.Device, Free: here})
			}
			s := &sums[i]
			s.Needed += part.Bytes
			if !slices.Contains(s.Agents, p.Agent) {
				s.Agents = append(s.Agents, p.Agent)
			}
		}
	}
	return sums
}

// String says who needs how much, and of how much.
func (s Sum) String() string {
	text := fmt.Sprintf("%s on %s: %s of memory needed", strings.Join(s.Agents, " and "), s.Device, Size(s.Needed))
	if s.Free >= 0 {
		text += fmt.Sprintf(", %s available", Size(s.Free))
	}
	return text
}

// Fits compares what all agents need on each device with what is free there. The error names, for each device that is
// short, the key to lower: that of the largest part which a key makes smaller.
func Fits(plans []Plan, free map[string]int64) error {
	var errs []error
	for _, s := range Sums(plans, free) {
		if s.Free >= 0 && s.Needed > s.Free {
			errs = append(errs, fmt.Errorf("%v: %s", s, remedy(plans, s)))
		}
	}
	return errors.Join(errs...)
}

func remedy(plans []Plan, s Sum) string {
	levers := slices.DeleteFunc(Levers(plans), func(l Lever) bool { return l.Device != s.Device })
	if len(levers) == 0 {
		return "copies from which checkpoints are written; use a smaller model, or train: false"
	}
	l := levers[0]
	text := fmt.Sprintf("lower %s (%d; %s %s)", l.Key, l.Value, l.Kind, Size(l.Bytes))
	if l.Kind == KVCache {
		text += " or " + strings.TrimSuffix(l.Key, "slots") + "context"
	}
	if l.Bytes < s.Needed-s.Free {
		text += "; that alone will not do: use a smaller model, train: false, or another device"
	}
	return text
}

// Levers are the keys to lower where agents need too much memory, the one on which most depends first.
func Levers(plans []Plan) []Lever {
	var out []Lever
	for _, p := range plans {
		out = append(out, p.Levers...)
	}
	slices.SortStableFunc(out, func(a, b Lever) int { return cmp.Compare(b.Bytes, a.Bytes) })
	return out
}
