package measure

import "os"

// growth runs work and returns by how many bytes the process's resident memory grew at most; 0 where Linux does not
// let a process begin its peak anew.
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
