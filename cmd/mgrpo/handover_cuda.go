//go:build cuda

package main

import "os"

// handOver returns: this is the program to hand over to. If it was started as a probe, it has answered by getting here,
// past the initialisation that ends the process without a driver.
func handOver() (reason string) {
	if os.Getenv(probeEnv) != "" {
		os.Exit(0)
	}
	return ""
}
