package durable

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode"
)

// Sharing determines whether other processes may hold the same folder.
type Sharing bool

const (
	Exclusive Sharing = false // no other process may hold the folder
	Shared    Sharing = true  // other processes may also hold it if all of them share it
)

const (
	lockFolder = "lock" // in the locked folder
	lockFile   = "held" // in lockFolder: the file that holders lock with flock; every other file there is the record of a holder
)

// Times of the heartbeat. They matter only if flock does not work between all holders.
var (
	beatInterval = 5 * time.Second
	silence      = 6 * beatInterval // a holder on another machine is considered dead after this silence
)

// Lock is a process's hold on a folder. It ends with Release or with the process.
//
// Processes on one machine are kept apart by flock, and so are machines whose network file system passes flock on. The
// kernel releases it when a process dies. Where flock does not work, holders are kept apart by records: each holder has a
// file in the folder and changes the file's modification time as long as it lives. A record that does not change belongs to
// a dead process.
type Lock struct {
	dir    string
	file   *os.File // locked with flock; nil if the file system has no flock
	record string   // path of this holder's record
	stop   context.CancelFunc
	beats  sync.WaitGroup
}

// Holder describes a process that holds a folder.
type Holder struct {
	PID     int       `json:"pid"`
	Host    string    `json:"host"`
	Boot    string    `json:"boot"`    // identifies the running kernel; processes with equal values see each other's flock
	Command string    `json:"command"` // such as "mgrpo train"
	Since   time.Time `json:"since"`
	Sharing Sharing   `json:"shared"`

	path string
}

// HeldError is the error of a process that may not use a folder, because other processes do.
type HeldError struct {
	Dir     string
	Holders []Holder // holders that have a record; empty if it could not be read
}

// Error names the folder and its holders, and states what to do.
func (e *HeldError) Error() string {
	var who []string
	for _, h := range e.Holders {
		who = append(who, h.String())
	}
	return fmt.Sprintf("%s is in use by %s: stop it first, or choose another folder", e.Dir, cmp.Or(strings.Join(who, " and "), "another process"))
}

// String returns the holder's command, process id, host and start.
func (h Holder) String() string {
	return fmt.Sprintf("%s, process %d on %s since %s", h.Command, h.PID, h.Host, h.Since.Format(time.DateTime))
}

// AcquireLock takes hold of a folder, and makes it if it does not exist. The error is a *HeldError if other processes hold
// the folder, unless they and this one all share it. A dead holder does not count. If only its silence can show that it is
// dead, AcquireLock waits and calls waiting with the reason. lost is called if another process has considered this one dead
// and has taken over the folder.
func AcquireLock(ctx context.Context, dir string, s Sharing, command string, waiting func(what string), lost func(error)) (*Lock, error) {
	l := &Lock{dir: dir}
	locks := filepath.Join(dir, lockFolder)
	if err := l.flock(locks, s); err != nil {
		return nil, err
	}
	host, _ := os.Hostname()
	own := Holder{PID: os.Getpid(), Host: host, Boot: boot(), Command: command, Since: time.Now().Truncate(time.Second), Sharing: s}
	l.record = filepath.Join(locks, fmt.Sprintf("%s.%d.%s", host, own.PID, rand.Text()[:8]))
	text, err := json.Marshal(own)
	if err == nil {
		err = writeRecord(l.record, text)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("locking %s: %w", dir, err), l.Release())
	}
	beating, stop := context.WithCancel(context.Background())
	l.stop = stop
	l.beats.Go(func() { l.beat(beating, lost) })
	if err := l.outlive(ctx, own, waiting); err != nil {
		return nil, errors.Join(err, l.Release())
	}
	return l, nil
}

// writeRecord writes a record that appears complete.
func writeRecord(path string, text []byte) error {
	unfinished := filepath.Join(filepath.Dir(path), "."+filepath.Base(path))
	if err := os.WriteFile(unfinished, text, 0o666); err != nil {
		return err
	}
	return os.Rename(unfinished, path)
}

// flock locks the file of the folder's locks. If its last holder removes the file between the calls, flock makes it again.
func (l *Lock) flock(locks string, s Sharing) error {
	how := syscall.LOCK_EX
	if s == Shared {
		how = syscall.LOCK_SH
	}
	for {
		if err := MkdirAll(OS{}, locks); err != nil {
			return err
		}
		f, err := os.OpenFile(filepath.Join(locks, lockFile), os.O_RDWR|os.O_CREATE, 0o666)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("locking %s: %w", l.dir, err)
		}
		switch err := flock(f, how); {
		case errors.Is(err, syscall.EWOULDBLOCK):
			return errors.Join(&HeldError{l.dir, holders(locks)}, f.Close())
		case errors.Is(err, syscall.ENOLCK), errors.Is(err, syscall.ENOSYS), errors.Is(err, syscall.EOPNOTSUPP):
			return f.Close()
		case err != nil:
			return errors.Join(fmt.Errorf("locking %s: %w", l.dir, err), f.Close())
		}
		mine, err := f.Stat()
		there, gone := os.Stat(f.Name())
		if err == nil && gone == nil && os.SameFile(mine, there) {
			l.file = f
			return nil
		}
		if err := f.Close(); err != nil {
			return err
		}
	}
}

func flock(f *os.File, how int) error {
	for {
		err := syscall.Flock(int(f.Fd()), how|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

// outlive removes the records of dead holders that do not share the folder with own. It returns a *HeldError if one of them
// is alive.
func (l *Lock) outlive(ctx context.Context, own Holder, waiting func(string)) error {
	marks := map[string]time.Time{}
	var doubtful []Holder
	for _, h := range holders(filepath.Dir(l.record)) {
		switch {
		case h.path == l.record, h.Sharing == Shared && own.Sharing == Shared:
		case l.file != nil && h.Boot == own.Boot: // its flock would have refused this one
			_ = os.Remove(h.path)
		default:
			doubtful = append(doubtful, h)
			marks[h.path] = mark(h.path)
		}
	}
	if len(doubtful) == 0 {
		return nil
	}
	waiting(fmt.Sprintf("%s was in use by %s, which may have died: waiting %v to see whether it is alive", l.dir, doubtful[0], silence))
	for start := time.Now(); time.Since(start) < silence; {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(beatInterval / 5):
		}
		for _, h := range doubtful {
			if now := mark(h.path); !now.IsZero() && now != marks[h.path] {
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
				lost(fmt.Errorf("%s was taken over by another process, because this one did not renew its record for %v", l.dir, silence))
				return
			}
		}
	}
}

// Release gives the folder up. The last holder removes the lock's files, and the folder if it is otherwise empty.
func (l *Lock) Release() error {
	if l.stop != nil {
		l.stop()
	}
	l.beats.Wait()
	locks := filepath.Join(l.dir, lockFolder)
	_ = os.Remove(l.record)
	if l.file == nil {
		return nil
	}
	if flock(l.file, syscall.LOCK_EX) == nil { // no other process holds it
		here := boot()
		left := 0
		for _, h := range holders(locks) {
			if h.Boot != here || os.Remove(h.path) != nil {
				left++
			}
		}
		if left == 0 {
			_ = os.Remove(l.file.Name())
		}
	}
	err := l.file.Close()
	if os.Remove(locks) == nil { // fails as long as the folder is not empty
		_ = os.Remove(l.dir)
	}
	return err
}

// holders reads the records in a folder of locks and skips those that cannot be read.
func holders(locks string) (out []Holder) {
	entries, _ := os.ReadDir(locks)
	for _, e := range entries {
		path := filepath.Join(locks, e.Name())
		if e.Name() == lockFile || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		h := Holder{path: path, Command: "a process", Host: "an unknown host"}
		if text, err := ReadSmall(path, 1<<16); err == nil {
			_ = json.Unmarshal(text, &h)
		}
		h.Host, h.Command = printable(h.Host), printable(h.Command)
		out = append(out, h)
	}
	return out
}

// printable replaces the control characters of a text that any process may have written.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}

// mark returns the modification time of a record, or zero if there is no record. It opens the file, because a network file
// system then asks its server.
func mark(path string) time.Time {
	f, err := os.Open(path)
	if err != nil {
		return time.Time{}
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}

// boot returns an identifier of the running kernel.
func boot() string {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		host, _ := os.Hostname()
		return host
	}
	return strings.TrimSpace(string(text))
}
