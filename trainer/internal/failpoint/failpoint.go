// Package failpoint names the moments at which a worker may be killed: before and after every
// operation that commits data. In an ordinary build its functions have no effect. In a build
// with the tag failpoint, a process kills or suspends itself at a chosen point and logs the
// points that it passed before. bench/chaos uses this to kill workers at chosen moments.
package failpoint

// Environment of a process built with the tag failpoint.
const (
	// NAME:N: the process sends itself SIGKILL when it passes NAME for the N-th time, counted from 1; NAME:N:stop: SIGSTOP.
	KillEnv = "MGRPO_FAILPOINT"
	LogEnv  = "MGRPO_FAILPOINT_LOG" // file that gets a line "UNIXNANO NAME" for every passage
)
