package memory

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Sum is the memory that several agents need together on one device.
type Sum struct {
	Device string
	Agents []string
	Needed int64 // bytes
	Free   int64 // bytes; -1: not known
}

// Sums adds the needs of all agents up by device. The devices come in the order in which the needs name them. free maps
// devices to free bytes; a device whose free memory is not known is absent.
func Sums(needs []Need, free map[string]int64) []Sum {
	var sums []Sum
	for _, p := range needs {
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

// String names the agents, the device, and the needed and free memory.
func (s Sum) String() string {
	text := fmt.Sprintf("%s on %s: %s of memory needed", strings.Join(s.Agents, " and "), s.Device, Size(s.Needed))
	if s.Free >= 0 {
		text += fmt.Sprintf(", %s available", Size(s.Free))
	}
	return text
}

// Fits compares the needs of all agents with the free memory of each device. The error names, for each device that has
// too little, the configuration key to lower: that of the largest part that has a key.
func Fits(needs []Need, free map[string]int64) error {
	var errs []error
	for _, s := range Sums(needs, free) {
		if s.Free >= 0 && s.Needed > s.Free {
			errs = append(errs, fmt.Errorf("%v: %s", s, remedy(needs, s)))
		}
	}
	return errors.Join(errs...)
}

func remedy(needs []Need, s Sum) string {
	levers := slices.DeleteFunc(Levers(needs), func(l Lever) bool { return l.Device != s.Device })
	if len(levers) == 0 {
		return "these are copies from which checkpoints are written; use a smaller model, or set train: false for an agent"
	}
	l := levers[0]
	text := fmt.Sprintf("lower %s (%d; %s %s)", l.Key, l.Value, l.Kind, Size(l.Bytes))
	if l.Kind == KVCache {
		text += " or " + l.Key[:strings.LastIndex(l.Key, ".")+1] + "context"
	}
	if l.Bytes < s.Needed-s.Free {
		text += "; that alone is not enough: use a smaller model, train: false, or another device"
	}
	return text
}

// Levers are the keys to lower where agents need too much memory. The key of the largest part comes first.
func Levers(needs []Need) []Lever {
	var out []Lever
	for _, p := range needs {
		out = append(out, p.Levers...)
	}
	slices.SortStableFunc(out, func(a, b Lever) int { return cmp.Compare(b.Bytes, a.Bytes) })
	return out
}
