package main

import (
	"strings"

	"github.com/mgrpo/mgrpo/bench/measure"
)

// reasons are why targets were missed, by the row's name and the kind of target; written by hand from profiles.
var reasons = map[string]map[measure.Kind]string{}

func reason(r measure.Row, t measure.Target) string {
	name, _, _ := strings.Cut(r.Name, " ")
	return reasons[name][t.Kind]
}
