package main

// Where an NVIDIA driver answers and mgrpo-cuda lies beside bin/mgrpo, mgrpo-cuda takes over with the same
// arguments and environment. It is a program of its own because gorgonia/cu, which it links, ends the process
// on machines without a driver.
const (
	// noCUDAEnv, set to anything, keeps bin/mgrpo from handing over.
	noCUDAEnv = "MGRPO_NO_CUDA"
	// probeEnv makes mgrpo-cuda end at once, with status 0 if the driver answered.
	probeEnv = "MGRPO_CUDA_PROBE"
)

// cpuOnly says why this process does not use CUDA; "" where it does.
var cpuOnly string
