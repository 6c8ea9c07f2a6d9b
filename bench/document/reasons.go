package main

import (
	"strings"

	"github.com/mgrpo/mgrpo/bench/measure"
)

const smallProducts = "At 16 rows sampling is bound by arithmetic. Four fifths of its time are matrix products of few rows, which " +
	"run at little more than half the rate of a large one: `mgrpo_linear_cpu` reads weights as they are, without a packed copy."

const smallStep = "With a model this small half of the time goes to what surrounds the arithmetic: each small operation is an " +
	"OpenMP region of its own, and sampling's matrix products have few rows."

// reasons are why targets were missed, by "suite name" of the row and the kind of target; written by hand from profiles.
var reasons = map[string]map[measure.Kind]string{
	"rollout smollm2": {measure.Faster: smallProducts, measure.Floor: smallProducts},
	"step small":      {measure.Faster: smallStep},
}

func reason(r measure.Row, t measure.Target) string {
	name, _, _ := strings.Cut(r.Name, " ")
	return reasons[r.Suite+" "+name][t.Kind]
}
