package config

import _ "embed"

//go:embed example.yaml
var example string

// Example returns the commented configuration that `mgrpo init` writes. It trains the built-in task without changes.
func Example() string { return example }
