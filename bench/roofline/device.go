// Package roofline computes the least time of a training step from the operations of the step. The time of an operation is the larger
// of two quotients: its bytes over the device's bandwidth, and its arithmetic over the device's rate (Williams, Waterman and
// Patterson, Roofline, 2009). The launch of its kernels is added. The package does not measure: all functions are pure.
package roofline

import (
	"fmt"
	"strings"
)

// Device holds the rates of a device, per second.
type Device struct {
	Name string
	GPU  bool // computes in bf16 by default

	Read, Copy float64 // bytes: reading only; reading and writing together

	// Floating-point operations of matrix products.
	FP32, BF16 float64 // large products
	Prompts16  float64 // generation with bf16 weights and many rows; with fp32 weights it has the rate FP32
	Few32      float64 // generation with few rows and fp32 weights
	Few16      float64 // generation with few rows and bf16 weights

	// The same with bf16 weights if the rows are rounded to bf16, too; 0: rows are not rounded.
	RoundedPrompts16, RoundedFew16 float64

	Attention float64 // operations of attention over prompts and in training
	Cached    float64 // bytes of keys and values that decoding reads

	Recurrence, TrainedRecurrence float64 // operations of gated delta rules: forward; forward and backward
	States                        float64 // bytes of their states that decoding reads and writes

	Launch float64 // seconds that a kernel takes in addition to its work
	Eager  float64 // seconds between two kernels that the host launches one by one; decoding on a GPU is one graph
	Link   float64 // bytes to the host
}

// Shares of the data sheet's figures that a large copy and a large product reach, measured on one H200: 4.3 of 4.8 TB/s, 788 of 989
// TFLOP/s (8192 × 8192 × 8192 in bf16, random numbers). The other GPUs are assumed to reach the same shares.
const (
	copyShare    = 4.3 / 4.8
	productShare = 788.0 / 989
)

// Seconds of launches, from NVIDIA's "Getting Started with CUDA Graphs". In a graph a kernel takes about a microsecond in addition to
// its work, and the host launches one in about 2.5. They are orders of magnitude and were not measured here.
const (
	inGraph  = 1e-6
	fromHost = 2.5e-6
)

// GPUs lists the GPUs with known figures: SXM parts, dense rates, from the data sheets of NVIDIA's H100, H200 and HGX B200.
var GPUs = []Device{
	gpu("H100", 3.35e12, 67e12, 989e12, 64e9),
	gpu("H200", 4.8e12, 67e12, 989e12, 64e9),
	gpu("B200", 8e12, 80e12, 2250e12, 64e9),
}

func gpu(name string, bandwidth, fp32, bf16, link float64) Device {
	bandwidth, fp32, bf16 = copyShare*bandwidth, productShare*fp32, productShare*bf16
	return Device{Name: name, GPU: true, Read: bandwidth, Copy: bandwidth, FP32: fp32, BF16: bf16, Prompts16: bf16, Few32: fp32, Few16: bf16,
		Attention: bf16, Cached: bandwidth, Recurrence: fp32, TrainedRecurrence: fp32, States: bandwidth, Launch: inGraph, Eager: fromHost, Link: link}
}

// GPU returns one of GPUs by its name, in upper or lower case.
func GPU(name string) (Device, error) {
	var known []string
	for _, d := range GPUs {
		if strings.EqualFold(d.Name, name) {
			return d, nil
		}
		known = append(known, strings.ToLower(d.Name))
	}
	return Device{}, fmt.Errorf("GPU %q: the figures of %s are known", name, strings.Join(known, ", "))
}
