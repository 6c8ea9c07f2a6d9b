package checkpoint

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"
)

// FS is what writing a checkpoint asks of a file system, so that tests can fail any operation. OS is the
// real one. Reading goes through package os.
type FS interface {
	Mkdir(path string) error               // the parent exists
	Create(path string) (WriteFile, error) // the file must not exist
	Rename(from, to string) error          // replaces a file
	RemoveAll(path string) error
	SyncDir(path string) error // makes creations and renames in the folder durable
}

// WriteFile is a file open for writing.
type WriteFile interface {
	io.Writer
	Sync() error
	Close() error
}

// OS is the operating system's file system.
type OS struct{}

func (OS) Mkdir(path string) error      { return os.Mkdir(path, 0o777) }
func (OS) Rename(from, to string) error { return os.Rename(from, to) }
func (OS) RemoveAll(path string) error  { return os.RemoveAll(path) }

func (OS) Create(path string) (WriteFile, error) {
	return os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
}

func (OS) SyncDir(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// File is a written file: its path with forward slashes (relative to the agent's folder in a manifest),
// size in bytes and SHA-256 in hexadecimal.
type File struct {
	Path   string `json:"path"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
}

// folder collects the files written into one new folder.
type folder struct {
	fs    FS
	path  string
	files []File
}

// writeFolder makes a new folder: fill writes its files under a temporary name beside it, and when they
// are on disk the folder takes its name. An existing folder is never touched.
func writeFolder(fsys FS, dir string, fill func(*folder) error) ([]File, error) {
	dir = filepath.Clean(dir)
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		if err == nil {
			err = fmt.Errorf("%s: %w", dir, fs.ErrExist)
		}
		return nil, err
	}
	parent, base := filepath.Split(dir)
	temporary := filepath.Join(parent, partialName(base))
	if err := fsys.RemoveAll(temporary); err != nil { // left by a crash
		return nil, err
	}
	if err := fsys.Mkdir(temporary); err != nil {
		return nil, err
	}
	f := &folder{fs: fsys, path: temporary}
	err := fill(f)
	if err == nil {
		err = fsys.SyncDir(temporary)
	}
	if err == nil {
		err = fsys.Rename(temporary, dir)
	}
	if err != nil {
		return nil, errors.Join(err, fsys.RemoveAll(temporary))
	}
	return f.files, fsys.SyncDir(filepath.Dir(dir))
}

func partialName(base string) string { return "." + base + ".partial" }

// create writes one file through to the disk and records its size and digest.
func (f *folder) create(name string, write func(io.Writer) error) error {
	file, err := f.fs.Create(filepath.Join(f.path, name))
	if err != nil {
		return err
	}
	digest := sha256.New()
	counter := &countingWriter{w: io.MultiWriter(file, digest)}
	buffered := bufio.NewWriterSize(counter, 1<<20)
	err = write(buffered)
	if err == nil {
		err = buffered.Flush()
	}
	if err == nil {
		err = file.Sync()
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	f.files = append(f.files, File{name, counter.n, hex.EncodeToString(digest.Sum(nil))})
	return nil
}

func (f *folder) createBytes(name string, data []byte) error {
	return f.create(name, func(w io.Writer) error { _, err := w.Write(data); return err })
}

// createExtra writes files handed in by the caller, which must be plain names that are not taken.
func (f *folder) createExtra(extra map[string][]byte, taken ...string) error {
	names := make([]string, 0, len(extra))
	for name := range extra {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		if name == "" || name[0] == '.' || strings.ContainsAny(name, `/\`) {
			return fmt.Errorf("extra file %q must be a plain file name", name)
		}
		for _, t := range taken {
			if name == t {
				return fmt.Errorf("extra file %q is written by the checkpoint itself", name)
			}
		}
		if err := f.createBytes(name, extra[name]); err != nil {
			return err
		}
	}
	return nil
}

type countingWriter struct {
	w io.Writer
	n int64
}

func (c *countingWriter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}
