package measure

import "os"

// growth runs work and returns the peak growth of the process's resident memory in bytes. It returns 0 if Linux does not allow the
// process to reset its peak.
func growth(work func()) int64 {
	// 5 resets VmHWM: see proc_pid_clear_refs(5).
	if os.WriteFile("/proc/self/clear_refs", []byte("5"), 0) != nil {
		work()
		return 0
	}
	before := resident("VmRSS")
	work()
	return max(0, resident("VmHWM")-before)
}

func resident(name string) int64 { return kilobytes(field("/proc/self/status", name)) }
