package main

import (
	_ "embed"
	"slices"

	"github.com/goccy/go-yaml"

	"github.com/mgrpo/mgrpo/bench/measure"
)

//go:embed remarks.yaml
var remarksYAML []byte

// remarks is the content of remarks.yaml.
var remarks = func() (r struct{ Missed, Met, Fast []remark }) {
	if err := yaml.UnmarshalWithOptions(remarksYAML, &r, yaml.Strict()); err != nil {
		panic(err)
	}
	return r
}()

// remark is a text about rows and their targets of some kinds, or of any kind.
type remark struct {
	Rows  []string
	Kinds []measure.Kind
	Text  string
}

// about returns the text about a row and a kind of target, or "".
func about(all []remark, row string, kind measure.Kind) string {
	for _, r := range all {
		if slices.Contains(r.Rows, row) && (r.Kinds == nil || slices.Contains(r.Kinds, kind)) {
			return r.Text
		}
	}
	return ""
}
