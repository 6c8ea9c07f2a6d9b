package measure

import "github.com/mgrpo/mgrpo/trainer/cgroup"

// Every provider of a case, in Go and in Python (bench/peers/inputs.py), makes the same inputs from this formula, in 32-bit unsigned
// arithmetic that wraps:
//
//	x = i * 0x9E3779B9 + stream * 0x85EBCA6B
//	x = (x ^ x >> 16) * 0x7FEB352D
//	x = (x ^ x >> 15) * 0x846CA68B
//	x =  x ^ x >> 16
//
// Uniform is then (x >> 8) 2^-23 - 1, a float32 in [-1, 1) without rounding, and Index is x * n >> 32 in 64 bits.

// Hash returns element i of a stream of numbers.
func Hash(stream, i uint32) uint32 {
	x := i*0x9E3779B9 + stream*0x85EBCA6B
	x = (x ^ x>>16) * 0x7FEB352D
	x = (x ^ x>>15) * 0x846CA68B
	return x ^ x>>16
}

// Uniform fills v with a stream's numbers in [-scale, scale).
func Uniform(v []float32, stream uint32, scale float32) {
	Share(len(v), cgroup.UsableCores().N, func(from, to int) {
		for i := from; i < to; i++ {
			v[i] = scale * (float32(Hash(stream, uint32(i))>>8)*0x1p-23 - 1)
		}
	})
}

// Index fills v with integers below n.
func Index(v []int32, stream, n uint32) {
	for i := range v {
		v[i] = int32(uint64(Hash(stream, uint32(i))) * uint64(n) >> 32)
	}
}
