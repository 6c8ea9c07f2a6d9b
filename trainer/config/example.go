package config

import _ "embed"

//go:embed example.yaml
var example string

// Example is the commented configuration that `mgrpo init` writes. It trains the built-in task as it
// is.
func Example() string { return example }
