package durable

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestMain lets the test program hold a folder as a process of its own.
func TestMain(m *testing.M) {
	if dir := os.Getenv("LOCK_TEST_DIR"); dir != "" {
		_, err := AcquireLock(context.Background(), dir, Sharing(os.Getenv("LOCK_TEST_SHARED")), "the other", func(string) {}, func(error) {})
		fmt.Println("held:", err)
		_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// other starts a process that holds dir.
func other(t *testing.T, dir, shared string) *exec.Cmd {
	t.Helper()
	c := exec.CommandContext(t.Context(), os.Args[0])
	c.Env = append(os.Environ(), "LOCK_TEST_DIR="+dir, "LOCK_TEST_SHARED="+shared)
	if _, err := c.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "held: <nil>\n" {
		t.Fatalf("the other process: %q, %v", line, err)
	}
	return c
}

func kill(t *testing.T, c *exec.Cmd) {
	t.Helper()
	if err := c.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = c.Wait()
}

// hold acquires a lock that the test releases.
func hold(t *testing.T, dir string, s Sharing) error {
	t.Helper()
	l, err := AcquireLock(t.Context(), dir, s, "this one", func(what string) { t.Log(what) }, func(error) {})
	if err == nil {
		t.Cleanup(func() {
			if err := l.Release(); err != nil {
				t.Error(err)
			}
		})
	}
	return err
}

// wantHolder fails the test unless err names the process.
func wantHolder(t *testing.T, err error, pid int) {
	t.Helper()
	host, _ := os.Hostname()
	var held *HeldError
	if !errors.As(err, &held) || !strings.Contains(err.Error(), "process "+strconv.Itoa(pid)+" on "+host) {
		t.Fatalf("want an error that names process %d on %s, got %v", pid, host, err)
	}
}

// TestLockOfOtherProcess: a folder that a process holds is refused by the name of the process, and free when it was killed.
func TestLockOfOtherProcess(t *testing.T) {
	for _, c := range []struct {
		name, theirs string
		own          Sharing
		refused      bool
	}{{"both exclusive", "", Exclusive, true}, {"theirs exclusive", "", "a run", true}, {"own exclusive", "a run", Exclusive, true}, {"both shared", "a run", "a run", false},
		{"other work", "another run", "a run", true}} {
		t.Run(c.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "run")
			holder := other(t, dir, c.theirs)
			err := hold(t, dir, c.own)
			if c.refused {
				wantHolder(t, err, holder.Process.Pid)
			} else if err != nil {
				t.Fatal(err)
			}
			kill(t, holder)
			if c.refused {
				if err := hold(t, dir, c.own); err != nil {
					t.Fatalf("after the holder was killed: %v", err)
				}
			}
		})
	}
}

// TestLockLeavesNothing: the last of several holders removes what the lock has written, also the records of holders that were
// killed, and nothing else.
func TestLockLeavesNothing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	var locks []*Lock
	for i := range 3 {
		if i == 1 { // the first of these made the folder
			kill(t, other(t, dir, "a run"))
		}
		l, err := AcquireLock(t.Context(), dir, "a run", "this one", func(string) {}, func(error) {})
		if err != nil {
			t.Fatal(err)
		}
		locks = append(locks, l)
	}
	for i, l := range slices.Backward(locks) {
		if i == 0 {
			wantHolder(t, hold(t, dir, Exclusive), os.Getpid())
		}
		if err := l.Release(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the empty folder is still there: %v", err)
	}
	l, err := AcquireLock(t.Context(), dir, Exclusive, "this one", func(string) {}, func(error) {})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.yaml"), nil, 0o666); err != nil {
		t.Fatal(err)
	}
	if err := l.Release(); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 1 || left[0].Name() != "config.yaml" {
		t.Errorf("left are %v, %v", left, err)
	}
}

// TestLockKeepsFolderOfOthers checks that a folder that existed before, and a link to it, remain when the lock is released.
func TestLockKeepsFolderOfOthers(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	link := dir + "-link"
	if err := errors.Join(os.Mkdir(dir, 0o777), os.Symlink(dir, link)); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{link, dir} {
		l, err := AcquireLock(t.Context(), path, Exclusive, "this one", func(string) {}, func(error) {})
		if err == nil {
			err = l.Release()
		}
		if err != nil {
			t.Fatal(err)
		}
		if left, err := os.ReadDir(link); err != nil || len(left) > 0 {
			t.Errorf("after the release of %s its folder holds %v: %v", path, left, err)
		}
	}
}

// foreignRecord writes the record of a holder on another machine, which flock does not reach, and returns its path.
func foreignRecord(t *testing.T, dir string) string {
	t.Helper()
	locks := filepath.Join(dir, lockFolder)
	if err := MkdirAll(OS{}, locks); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(Holder{PID: 7, Host: "far\naway", Boot: "another", Command: "mgrpo train"})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(locks, "far.7.X")
	if err := os.WriteFile(path, text, 0o666); err != nil {
		t.Fatal(err)
	}
	return path
}

// impatient shortens the times of heartbeats.
func impatient(t *testing.T) {
	old, oldSilence := beatInterval, staleAfter
	beatInterval, staleAfter = 10*time.Millisecond, 60*time.Millisecond
	t.Cleanup(func() { beatInterval, staleAfter = old, oldSilence })
}

// TestLockElsewhere: a holder that flock does not reach is dead if its record does not change, and refuses others as long as it does.
func TestLockElsewhere(t *testing.T) {
	impatient(t)
	dir := t.TempDir()
	path := foreignRecord(t, dir)
	if err := hold(t, dir, Exclusive); err != nil {
		t.Fatalf("of a silent holder: %v", err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its record is still there: %v", err)
	}

	staleAfter = time.Hour
	dir = t.TempDir()
	path = foreignRecord(t, dir)
	over := make(chan struct{})
	defer func() { over <- struct{}{} }()
	go func() {
		for at := time.Now(); ; at = at.Add(time.Second) {
			select {
			case <-over:
				return
			case <-time.After(time.Millisecond):
				_ = os.Chtimes(path, at, at)
			}
		}
	}()
	if err := hold(t, dir, Exclusive); err == nil || !strings.Contains(err.Error(), "mgrpo train, process 7 on far?away") {
		t.Errorf("of a holder that lives: %v", err)
	}
}

// TestLockLost: if another process removes a holder's record, the holder is notified.
func TestLockLost(t *testing.T) {
	impatient(t)
	dir, lost := t.TempDir(), make(chan error)
	l, err := AcquireLock(t.Context(), dir, Exclusive, "this one", func(string) {}, func(err error) { lost <- err })
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(l.record); err != nil {
		t.Fatal(err)
	}
	if err := <-lost; !strings.Contains(err.Error(), dir+" was taken over") {
		t.Errorf("lost: %v", err)
	}
	if err := l.Release(); err != nil {
		t.Error(err)
	}
}

// TestLockDamagedRecord: a record that is not JSON belongs to an unknown process. If its record
// does not change, the process counts as dead.
func TestLockDamagedRecord(t *testing.T) {
	impatient(t)
	dir := t.TempDir()
	if err := os.WriteFile(foreignRecord(t, dir), []byte("{"), 0o666); err != nil {
		t.Fatal(err)
	}
	if err := hold(t, dir, "a run"); err != nil {
		t.Error(err)
	}
}
