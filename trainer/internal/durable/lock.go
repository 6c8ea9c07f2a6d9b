package durable

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// Sharing is the work for which several processes hold a folder, such as a run of a given name. They may hold it at once if they
// have the same work.
type Sharing string

// Exclusive is the Sharing of a process that lets no other process hold the folder.
const Exclusive Sharing = ""

const (
	lockFolder = "lock" // in the locked folder
	lockFile   = "held" // in lockFolder: the file that holders lock with flock; every other file there is the record of a holder
)

// Times of the heartbeat. They matter only if flock does not work between all holders.
var (
	beatInterval = 5 * time.Second
	staleAfter   = 6 * beatInterval // a holder on another machine is considered dead after this silence
)

// Lock is a process's hold on a folder. It ends with Release or with the process.
//
// Processes on one machine are kept apart by flock, and so are machines whose network file system passes flock on. The
// kernel releases it when a process dies. Other network file systems refuse flock, or lock on one machine only, without an
// error. There holders are kept apart by records: each holder has a file in the folder and changes the file's modification
// time as long as it lives. A record that does not change belongs to a dead process.
type Lock struct {
	dir    string
	made   bool     // this holder made dir
	file   *os.File // locked with flock; nil if the file system has no flock
	record string   // path of this holder's record
	alive  *os.File // the record, locked with flock as long as this holder lives
	stop   context.CancelFunc
	beats  sync.WaitGroup
}

// TryLock locks an open file with flock until it is closed. It does not wait: locked is false if another process holds the
// lock.
func TryLock(f *os.File, s Sharing) (locked bool, err error) {
	how := syscall.LOCK_EX
	if s != Exclusive {
		how = syscall.LOCK_SH
	}
	for {
		switch err := syscall.Flock(int(f.Fd()), how|syscall.LOCK_NB); {
		case err == nil:
			return true, nil
		case errors.Is(err, syscall.EWOULDBLOCK):
			return false, nil
		case !errors.Is(err, syscall.EINTR):
			return false, fmt.Errorf("locking %s: %w", f.Name(), err)
		}
	}
}

// AcquireLock takes hold of a folder, and makes it if it does not exist. The error is a *HeldError if other processes hold
// the folder, unless they share it with this one. A dead holder does not count. If only its silence can show that it is
// dead, AcquireLock waits and calls waiting with the reason. lost is called if another process has considered this one dead
// and has taken over the folder.
func AcquireLock(ctx context.Context, dir string, s Sharing, command string, waiting func(what string), lost func(error)) (*Lock, error) {
	locks := filepath.Join(dir, lockFolder)
	_, there := os.Stat(dir)
	file, err := lockIn(dir, locks, s)
	if err != nil {
		return nil, err
	}
	host, _ := os.Hostname()
	own := Holder{PID: os.Getpid(), Host: host, Boot: bootID(), Command: command, Since: time.Now().Truncate(time.Second), Sharing: s}
	own.path = filepath.Join(locks, fmt.Sprintf("%s.%d.%s", host, own.PID, rand.Text()[:8]))
	beating, stop := context.WithCancel(context.Background())
	l := &Lock{dir: dir, made: errors.Is(there, fs.ErrNotExist), file: file, record: own.path, stop: stop}
	if l.alive, err = writeRecord(own); err != nil {
		return nil, errors.Join(fmt.Errorf("locking %s: %w", dir, err), l.Release())
	}
	l.beats.Go(func() { l.beat(beating, lost) })
	if err := l.removeDead(ctx, own, waiting); err != nil {
		return nil, errors.Join(err, l.Release())
	}
	return l, nil
}

// lockIn opens and locks the file of a folder's locks. It returns nil if the file system has no flock. If the file's last
// holder removes it between the calls, lockIn makes it again.
func lockIn(dir, locks string, s Sharing) (*os.File, error) {
	for {
		if err := MkdirAll(OS{}, locks); err != nil {
			return nil, err
		}
		f, err := os.OpenFile(filepath.Join(locks, lockFile), os.O_RDWR|os.O_CREATE, 0o666)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("locking %s: %w", dir, err)
		}
		locked, err := TryLock(f, s)
		if errors.Is(err, syscall.ENOLCK) || errors.Is(err, syscall.ENOSYS) || errors.Is(err, syscall.EOPNOTSUPP) {
			return nil, f.Close()
		}
		if err == nil && !locked {
			err = &HeldError{dir, holders(locks)}
		}
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		mine, err := f.Stat()
		there, gone := os.Stat(f.Name())
		if err == nil && gone == nil && os.SameFile(mine, there) {
			return f, nil
		}
		if err := f.Close(); err != nil {
			return nil, err
		}
	}
}

// writeRecord writes a holder's record. The result is locked with flock, if the file system has flock.
func writeRecord(h Holder) (*os.File, error) {
	text, err := json.Marshal(h)
	if err != nil {
		return nil, err
	}
	hidden := filepath.Join(filepath.Dir(h.path), "."+filepath.Base(h.path)) // until it is locked
	f, err := os.OpenFile(hidden, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return nil, err
	}
	_, _ = TryLock(f, Exclusive)
	if _, err = f.Write(text); err == nil {
		err = os.Rename(hidden, h.path)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close(), os.Remove(hidden))
	}
	return f, nil
}

// holderAlive reports whether the holder of a record on this machine is alive. known is false if flock cannot show it.
func holderAlive(record string) (alive, known bool) {
	f, err := os.Open(record)
	if err != nil {
		return false, errors.Is(err, fs.ErrNotExist)
	}
	defer f.Close()
	const probe Sharing = "a probe" // shared, because an exclusive lock needs a file that is open for writing on NFS
	locked, err := TryLock(f, probe)
	return err == nil && !locked, err == nil
}

// removeDead removes the records of dead holders that do not share the folder with own. It returns a *HeldError if one of
// them is alive.
func (l *Lock) removeDead(ctx context.Context, own Holder, waiting func(string)) error {
	var doubtful []Holder
	for _, h := range holders(filepath.Dir(own.path)) {
		alive, known := false, l.file != nil && h.Boot == own.Boot
		if known {
			alive, known = holderAlive(h.path)
		}
		switch {
		case h.path == own.path, h.Sharing == own.Sharing && own.Sharing != Exclusive:
		case known && alive: // for other work; an exclusive one's flock has refused this one
			return &HeldError{l.dir, []Holder{h}}
		case known:
			_ = os.Remove(h.path)
		default:
			doubtful = append(doubtful, h)
		}
	}
	if len(doubtful) == 0 {
		return nil
	}
	waiting(fmt.Sprintf("%s was in use by %s, which may have died: waiting %v to see whether it is alive", l.dir, doubtful[0], staleAfter))
	for start := time.Now(); time.Since(start) < staleAfter; {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(beatInterval / 5):
		}
		for _, h := range doubtful {
			if now := recordTime(h.path); !now.IsZero() && now != h.beat {
				return &HeldError{l.dir, []Holder{h}}
			}
		}
	}
	for _, h := range doubtful {
		_ = os.Remove(h.path)
	}
	return nil
}

// beat changes the record's time until the lock is released. If the record is gone, another process has taken over.
func (l *Lock) beat(ctx context.Context, lost func(error)) {
	tick := time.NewTicker(beatInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			if err := os.Chtimes(l.record, now, now); errors.Is(err, fs.ErrNotExist) {
				lost(fmt.Errorf("%s was taken over by another process, because this one did not renew its record for %v", l.dir, staleAfter))
				return
			}
		}
	}
}

// Release gives the folder up. The last holder removes the lock's files. If it made the folder, it also removes the folder,
// unless there is something else in it.
func (l *Lock) Release() error {
	l.stop()
	l.beats.Wait()
	locks := filepath.Join(l.dir, lockFolder)
	_ = os.Remove(l.record)
	if l.alive != nil {
		_ = l.alive.Close()
	}
	if l.file == nil {
		return nil
	}
	if last, _ := TryLock(l.file, Exclusive); last {
		here := bootID()
		remaining := 0
		for _, h := range holders(locks) {
			if h.Boot != here || os.Remove(h.path) != nil {
				remaining++
			}
		}
		if remaining == 0 {
			_ = os.Remove(l.file.Name())
		}
	}
	err := l.file.Close()
	if syscall.Rmdir(locks) == nil && l.made { // fails as long as the folder is not empty
		_ = syscall.Rmdir(l.dir) // os.Remove would remove a link to the folder
	}
	return err
}
