package main

// If an NVIDIA driver answers and mgrpo-cuda is next to bin/mgrpo, mgrpo-cuda takes over with the same arguments and
// environment. It is a separate program because gorgonia/cu, which it links, ends the process on machines without a
// driver.
const (
	// noCUDAEnv, set to anything, keeps bin/mgrpo from handing over.
	noCUDAEnv = "MGRPO_NO_CUDA"
	// probeEnv makes mgrpo-cuda end at once, with status 0 if the driver answered.
	probeEnv = "MGRPO_CUDA_PROBE"
)

// cpuOnly is the reason why this process does not use CUDA, or "" if it does.
var cpuOnly string
