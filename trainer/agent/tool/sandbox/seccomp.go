package sandbox

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// deniedCalls are the system calls that a sandboxed program may not make; deniedHere adds calls of its architecture.
// They concern new processes and threads, sockets, namespaces and mounts, other processes, memory that no limit counts,
// and the administration of the machine.
var deniedCalls = []uint32{
	unix.SYS_CLONE,
	unix.SYS_SOCKET, unix.SYS_CONNECT, unix.SYS_BIND, unix.SYS_LISTEN, unix.SYS_ACCEPT, unix.SYS_ACCEPT4,
	unix.SYS_UNSHARE, unix.SYS_SETNS, unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_PIVOT_ROOT, unix.SYS_CHROOT,
	unix.SYS_OPEN_TREE, unix.SYS_MOVE_MOUNT, unix.SYS_FSOPEN, unix.SYS_FSCONFIG, unix.SYS_FSMOUNT, unix.SYS_FSPICK, unix.SYS_MOUNT_SETATTR,
	unix.SYS_PTRACE, unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV, unix.SYS_KCMP,
	unix.SYS_PIDFD_OPEN, unix.SYS_PIDFD_GETFD, unix.SYS_PIDFD_SEND_SIGNAL,
	unix.SYS_MEMFD_CREATE, unix.SYS_MEMFD_SECRET, unix.SYS_SHMGET, unix.SYS_MSGGET, unix.SYS_SEMGET, unix.SYS_MQ_OPEN,
	unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN, unix.SYS_USERFAULTFD, unix.SYS_FANOTIFY_INIT,
	unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER, unix.SYS_IO_SETUP, unix.SYS_IO_SUBMIT,
	unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY, unix.SYS_KEYCTL,
	unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_NAME_TO_HANDLE_AT,
	unix.SYS_PERSONALITY, unix.SYS_QUOTACTL, unix.SYS_SWAPON, unix.SYS_SWAPOFF, unix.SYS_REBOOT, unix.SYS_ACCT, unix.SYS_SYSLOG,
	unix.SYS_KEXEC_LOAD, unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE, unix.SYS_DELETE_MODULE,
	unix.SYS_SETTIMEOFDAY, unix.SYS_CLOCK_SETTIME, unix.SYS_CLOCK_ADJTIME, unix.SYS_ADJTIMEX, unix.SYS_SETHOSTNAME, unix.SYS_SETDOMAINNAME,
}

// seccompFilter returns a filter that kills a process after a call of another architecture and lets the denied calls
// fail with EPERM.
func seccompFilter() []unix.SockFilter {
	const (
		load    = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		equal   = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		atLeast = unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K
		end     = unix.BPF_RET | unix.BPF_K

		number, arch = 0, 4       // offsets in struct seccomp_data
		otherABI     = 0x40000000 // numbers from here on are x32 calls
	)
	fails := func(call uint32, with uint32) []unix.SockFilter {
		return []unix.SockFilter{{Code: equal, K: call, Jf: 1}, {Code: end, K: unix.SECCOMP_RET_ERRNO | with}}
	}
	filter := []unix.SockFilter{
		{Code: load, K: arch}, {Code: equal, K: auditArch, Jt: 1}, {Code: end, K: unix.SECCOMP_RET_KILL_PROCESS},
		{Code: load, K: number}, {Code: atLeast, K: otherABI, Jf: 1}, {Code: end, K: unix.SECCOMP_RET_KILL_PROCESS},
	}
	filter = append(filter, fails(unix.SYS_CLONE3, uint32(unix.ENOSYS))...) // libraries then try clone instead
	for _, call := range append(deniedCalls[:len(deniedCalls):len(deniedCalls)], deniedHere...) {
		filter = append(filter, fails(call, uint32(unix.EPERM))...)
	}
	return append(filter, unix.SockFilter{Code: end, K: unix.SECCOMP_RET_ALLOW})
}

// dropRights permanently removes all rights of this thread and installs a filter of its system calls.
func dropRights(filter []unix.SockFilter) error {
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("dropping rights: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("forbidding new rights: %w", err)
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&program)), 0, 0); err != nil {
		return fmt.Errorf("filtering system calls: %w", err)
	}
	return nil
}
