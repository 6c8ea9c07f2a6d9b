package store

import (
	"slices"
	"testing"
)

func TestScriptsHaveNames(t *testing.T) {
	s := combine("-- KEYS: leases...\n-- ARGV: agents... agent\n\n", "-- KEYS: epochs\n-- ARGV: agents...\n--\n-- Returns.\n\nreturn 1\n")
	keys, args := s.inOrder(values{"agents...": []string{"a", "b"}, "agent": 3, "leases...": []string{"x"}, "epochs": "e"})
	if !slices.Equal(keys, []string{"e", "x"}) || !slices.Equal(args, []any{3, "a", "b"}) {
		t.Errorf("keys %v, arguments %v", keys, args)
	}
	for _, wrong := range []values{
		{"epochs": "e", "agent": 3, "agents...": []string{}},
		{"epochs": "e", "agent": 3, "agents...": []string{}, "lease...": []string{}},
		{"epochs": "e", "agents": 3, "agents...": []string{}, "leases...": []string{}},
		{"epochs": "e", "agent": 3, "agents...": []string{}, "leases...": []string{}, "more": 1},
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%v is accepted", wrong)
				}
			}()
			s.inOrder(wrong)
		}()
	}
}
