// Package durable replaces files and folders atomically: after a crash at any moment either the old or the new content is
// there, complete. It also reads small files in bounded memory.
package durable

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/internal/failpoint"
)

// FS has the file system operations that writing needs, so that tests can make each of them fail. OS is the real file
// system. Reading uses package os.
type FS interface {
	Mkdir(path string) error               // the parent must exist
	Create(path string) (WriteFile, error) // the file must not exist
	Rename(from, to string) error          // replaces an existing file
	Link(from, to string) error            // to, which must not exist, is another name of the file
	RemoveAll(path string) error
	SyncDir(path string) error // afterwards a crash cannot undo creations, renames and removals in the folder
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
func (OS) Link(from, to string) error   { return os.Link(from, to) }
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

// MkdirAll makes a folder and its missing parents, and syncs each of their parents.
func MkdirAll(fsys FS, path string) error {
	path = filepath.Clean(path)
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return nil
	}
	parent := filepath.Dir(path)
	if err := MkdirAll(fsys, parent); err != nil {
		return err
	}
	if err := fsys.Mkdir(path); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return fsys.SyncDir(parent)
}

// File is a written file: its path with forward slashes (relative to the agent's folder in a manifest),
// size in bytes and SHA-256 in hexadecimal.
type File struct {
	Path   string `json:"path"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
}

// Digest reads a file and returns its size and SHA-256, and its name as the path.
func Digest(path string) (File, error) {
	file, err := os.Open(path)
	if err != nil {
		return File{}, err
	}
	defer file.Close()
	digest := sha256.New()
	n, err := io.Copy(digest, file)
	return File{filepath.Base(path), n, hex.EncodeToString(digest.Sum(nil))}, err
}

// Verify compares a file of a folder with the size and digest that it had when it was written.
func (f File) Verify(dir string) error {
	path := filepath.Join(dir, f.Path)
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return errors.New("is missing")
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return errors.New("is not a regular file")
	case info.Size() != f.Size:
		return fmt.Errorf("has %d bytes, but %d were written", info.Size(), f.Size)
	}
	found, err := Digest(path)
	if err == nil && found.SHA256 != f.SHA256 {
		err = errors.New("was changed: its SHA-256 differs from the SHA-256 of the written bytes")
	}
	return err
}

// Folder collects the files written into one new folder.
type Folder struct {
	fs    FS
	path  string
	files []File
}

// NewFolder writes a folder as WriteFolder does, but the folder must not exist yet.
func NewFolder(fsys FS, dir string, fill func(*Folder) error) ([]File, error) {
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		if err == nil {
			err = fmt.Errorf("%s: %w", dir, fs.ErrExist)
		}
		return nil, err
	}
	return WriteFolder(fsys, dir, fill)
}

// WriteFolder writes a folder, and replaces an existing one. fill writes the files into a temporary folder next to it. When
// the files are on disk, the temporary folder is renamed.
func WriteFolder(fsys FS, dir string, fill func(*Folder) error) ([]File, error) {
	dir = filepath.Clean(dir)
	if err := RemovePartial(fsys, dir); err != nil {
		return nil, err
	}
	temporary := PartialName(dir)
	if err := fsys.Mkdir(temporary); err != nil {
		return nil, err
	}
	f := &Folder{fs: fsys, path: temporary}
	err := fill(f)
	if err == nil {
		err = fsys.SyncDir(temporary)
	}
	if err == nil {
		err = fsys.RemoveAll(dir)
	}
	if err == nil {
		failpoint.Here("checkpoint.folder.before")
		err = fsys.Rename(temporary, dir)
	}
	if err != nil {
		return nil, errors.Join(err, fsys.RemoveAll(temporary))
	}
	failpoint.Here("checkpoint.folder.renamed")
	return f.files, fsys.SyncDir(filepath.Dir(dir))
}

// PartialName returns the temporary name of a file or folder while it is written. The name is random, so that two processes
// do not use the same one.
func PartialName(path string) string {
	dir, base := filepath.Split(path)
	return filepath.Join(dir, "."+base+"."+rand.Text()[:8]+partialSuffix)
}

const partialSuffix = ".partial"

// RemovePartial removes the temporary files and folders of path that a crash left behind.
func RemovePartial(fsys FS, path string) error {
	dir, base := filepath.Split(path)
	partial, err := filepath.Glob(filepath.Join(GlobQuote(dir), "."+GlobQuote(base)+".????????"+partialSuffix))
	for _, path := range partial {
		err = errors.Join(err, fsys.RemoveAll(path))
	}
	return err
}

// GlobQuote escapes the special characters of filepath.Glob.
func GlobQuote(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}

// ReplaceFile writes a file atomically and syncs it: after a crash either the old or the new file is there, complete.
// Several processes may replace the same file. If the file already has these bytes, it is not written.
func ReplaceFile(path string, data []byte) error {
	if there, err := os.ReadFile(path); err == nil && bytes.Equal(there, data) {
		return nil
	}
	return Replace(OS{}, path, data)
}

// Replace writes data to a file of any file system as ReplaceFile does, even if the file already has these bytes.
func Replace(fsys FS, path string, data []byte) error {
	return ReplaceWith(fsys, path, func(w io.Writer) error { _, err := w.Write(data); return err })
}

// ReplaceWith replaces a file as Replace does, with the bytes that write produces.
func ReplaceWith(fsys FS, path string, write func(io.Writer) error) error {
	temporary, dir := PartialName(path), filepath.Dir(path)
	f := &Folder{fs: fsys, path: dir}
	err := f.Create(filepath.Base(temporary), write)
	if err == nil {
		err = fsys.Rename(temporary, path)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", filepath.Base(path), errors.Join(err, fsys.RemoveAll(temporary)))
	}
	return fsys.SyncDir(dir)
}

// Create writes a file, syncs it, and records its size and digest.
func (f *Folder) Create(name string, write func(io.Writer) error) error {
	file, err := f.fs.Create(filepath.Join(f.path, name))
	if err != nil {
		return err
	}
	digest := sha256.New()
	counter := &CountingWriter{W: io.MultiWriter(file, digest)}
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
	f.files = append(f.files, File{name, counter.N, hex.EncodeToString(digest.Sum(nil))})
	return nil
}

// Share replaces a written file by a hard link to the file of the same name in another folder, if both have the same bytes.
// Then they take the space of one file. `there` describes the file in dir when it was written; the file is read again
// first. If the file system does not support links, nothing changes.
func (f *Folder) Share(name, dir string, there File) error {
	i := slices.IndexFunc(f.files, func(own File) bool { return own.Path == name && own == there })
	if i < 0 || there.Verify(dir) != nil {
		return nil
	}
	own := filepath.Join(f.path, name)
	linked := PartialName(own)
	if err := f.fs.Link(filepath.Join(dir, name), linked); err != nil {
		return nil //nolint:nilerr // the file that was written stays
	}
	return f.fs.Rename(linked, own)
}

func (f *Folder) CreateBytes(name string, data []byte) error {
	return f.Create(name, func(w io.Writer) error { _, err := w.Write(data); return err })
}

// Path returns the temporary folder in which the files are written.
func (f *Folder) Path() string { return f.path }

// Files returns the files written so far.
func (f *Folder) Files() []File { return slices.Clone(f.files) }

// CreateExtra writes the caller's own files. Their names must be plain file names that are not in taken.
func (f *Folder) CreateExtra(extra map[string][]byte, taken ...string) error {
	for _, name := range slices.Sorted(maps.Keys(extra)) {
		if name == "" || name[0] == '.' || strings.ContainsAny(name, `/\`) {
			return fmt.Errorf("extra file %q must be a plain file name", name)
		}
		if slices.Contains(taken, name) {
			return fmt.Errorf("extra file %q is written by the checkpoint itself", name)
		}
		if err := f.CreateBytes(name, extra[name]); err != nil {
			return err
		}
	}
	return nil
}

// CountingWriter passes on the bytes that are written and counts them in N.
type CountingWriter struct {
	W io.Writer
	N int64
}

func (c *CountingWriter) Write(p []byte) (int, error) {
	n, err := c.W.Write(p)
	c.N += int64(n)
	return n, err
}

// ReadSmall reads a regular file of at most limit bytes.
func ReadSmall(path string, limit int64) ([]byte, error) {
	info, err := os.Stat(path) // checked before opening, because opening a FIFO blocks
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", filepath.Base(path))
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("%s is larger than %d bytes", filepath.Base(path), limit)
	}
	return data, nil
}

// Publish writes a file that must not exist yet, and syncs it. It appears complete or not at all. If the file already
// exists, for example because another process was first, it is not changed, and the error is fs.ErrExist.
func Publish(path string, data []byte) error {
	temporary, dir := PartialName(path), filepath.Dir(path)
	f := &Folder{fs: OS{}, path: dir}
	err := f.CreateBytes(filepath.Base(temporary), data)
	if err == nil {
		err = os.Link(temporary, path)
	}
	if err = errors.Join(err, os.Remove(temporary)); err != nil {
		return err
	}
	return OS{}.SyncDir(dir)
}
