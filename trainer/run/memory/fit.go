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
	Free   int64 // bytes; -1: unknown
}

// Sums adds up the needs of all agents by device, in the order in which the needs name the devices. free maps devices
// to free bytes; a device whose free memory is unknown is absent.
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
			who := p.Agent
			if part.Device != p.Device {
				who = "a part of " + who
			}
			if !slices.Contains(s.Agents, p.Agent) && !slices.Contains(s.Agents, who) {
				s.Agents = append(s.Agents, who)
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

// Fits compares the needs of all agents with the free memory of each device. For each device with too little, the error
// names the configuration key to lower: the key of the largest part that has one. It names the copies for checkpoints
// instead if there is no key, or if lowering the key is not enough and the copies are larger.
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
	over, copies := s.Needed-s.Free, int64(0)
	for _, p := range needs {
		copies += p.sum(func(part Part) bool { return part.Kind == Snapshot && part.Device == s.Device })
	}
	if len(levers) == 0 || over > levers[0].Bytes && copies > levers[0].Bytes {
		return fmt.Sprintf("%s are copies from which checkpoints are written; use a smaller model, adapters (lora), train: false, or more memory", Size(copies))
	}
	l := levers[0]
	text := fmt.Sprintf("lower %s (%d; %s %s)", l.Key, l.Value, l.Kind, Size(l.Bytes))
	if l.Kind == KVCache {
		agent, _, _ := strings.Cut(l.Key, ".engine.")
		text += " or " + agent + ".limits.max_tokens"
	}
	if over > l.Bytes {
		text += "; that alone is not enough: use a smaller model, train: false, or another device"
	}
	return text
}

// Levers returns the keys to lower if agents need too much memory. The key of the largest part comes first.
func Levers(needs []Need) []Lever {
	var out []Lever
	for _, p := range needs {
		out = append(out, p.Levers...)
	}
	slices.SortStableFunc(out, func(a, b Lever) int { return cmp.Compare(b.Bytes, a.Bytes) })
	return out
}
