//go:build !failpoint

package failpoint

// Here is a moment named by its parts, which dots join.
func Here(...string) {}

// Around is the moment before what follows, PARTS.before; what it returns is the moment after, PARTS.after.
func Around(...string) (after func()) { return nothing }

func nothing() {}
