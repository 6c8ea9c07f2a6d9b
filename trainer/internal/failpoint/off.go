//go:build !failpoint

package failpoint

// Here marks a moment. Its name is the parts, joined by dots.
func Here(...string) {}

// Around marks two moments: PARTS.before when it is called, and PARTS.after when the function that it returns is called.
func Around(...string) (after func()) { return nothing }

func nothing() {}
