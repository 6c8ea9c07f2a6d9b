// Package failpoint names the moments at which a worker may be killed: before and after everything that
// commits something. In an ordinary build a passage is nothing at all. Built with the tag failpoint, a
// process kills itself, or puts itself to sleep, at a passage of one's choice and keeps a log of those before it, which is how
// bench/chaos kills workers exactly where it hurts and knows where it hit them.
package failpoint

// Environment of a process built with the tag failpoint.
const (
	KillEnv = "MGRPO_FAILPOINT"     // NAME:N: SIGKILL to itself at the N-th passage of NAME, from 1; NAME:N:stop: SIGSTOP
	LogEnv  = "MGRPO_FAILPOINT_LOG" // file that gets a line "UNIXNANO NAME" for every passage
)
