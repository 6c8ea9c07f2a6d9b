package search

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/blevesearch/bleve/v2"

	"github.com/mgrpo/mgrpo/trainer/internal/durable"
)

const (
	// indexFormat is the version of the conversion of documents into an index: passages, analysis, bleve's files. A
	// change makes a new index.
	indexFormat   = "3"
	indexManifest = "index.json"
	maxManifest   = 1 << 20 // bytes
	maxIndexFiles = 100
)

// indexOnDisk is an index in its own folder below dir, named after the corpus. The first process builds it once. Any
// number of processes then read it.
type indexOnDisk struct {
	corpus string
	dir    string
	note   func(text string) // receives messages about long operations
}

// open opens the index. It builds the index first if it does not exist.
func (k indexOnDisk) open(ctx context.Context) (bleve.Index, error) {
	if err := durable.MkdirAll(durable.OS{}, k.dir); err != nil {
		return nil, err
	}
	digest, err := corpusDigest(ctx, k.corpus)
	if err != nil {
		return nil, err
	}
	folder := filepath.Join(k.dir, digest)
	index, err := openIndex(folder)
	if !errors.Is(err, fs.ErrNotExist) {
		return index, err
	}
	unlock, err := k.lock(ctx, folder+".lock")
	if err != nil {
		return nil, err
	}
	defer unlock()
	if index, err = openIndex(folder); !errors.Is(err, fs.ErrNotExist) { // another process built it meanwhile
		return index, err
	}
	if err := k.build(ctx, folder); err != nil {
		return nil, err
	}
	return openIndex(folder)
}

// corpusDigest returns the name of a corpus's index: a digest of all its files with their names.
func corpusDigest(ctx context.Context, corpus string) (string, error) {
	files, err := corpusFiles(corpus)
	if err != nil {
		return "", err
	}
	all := sha256.New()
	fmt.Fprintf(all, "format %s\n", indexFormat)
	for _, file := range files {
		if err := ctx.Err(); err != nil {
			return "", err
		}
		at, err := durable.Digest(file)
		if err != nil {
			return "", err
		}
		name, err := filepath.Rel(corpus, file) // for a corpus in one file the name is always a dot
		if err != nil {
			return "", err
		}
		fmt.Fprintf(all, "%q %d %s\n", name, at.Size, at.SHA256)
	}
	return hex.EncodeToString(all.Sum(nil)[:16]), nil
}

// lock waits for the lock of an index that does not exist yet.
func (k indexOnDisk) lock(ctx context.Context, path string) (unlock func(), err error) {
	const pause = 50 * time.Millisecond
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o666)
	if err != nil {
		return nil, err
	}
	for noted := false; ; noted = true {
		locked, err := durable.TryLock(f, durable.Exclusive)
		switch {
		case locked:
			return func() { _ = f.Close() }, nil // closing unlocks
		case err != nil:
			return nil, errors.Join(err, f.Close())
		case !noted:
			k.note(fmt.Sprintf("waiting until another process has built the search index of %s", k.corpus))
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), f.Close())
		case <-time.After(pause):
		}
	}
}

// build writes the index into a temporary folder and renames it once everything is on the disk.
func (k indexOnDisk) build(ctx context.Context, folder string) error {
	_, err := durable.WriteFolder(durable.OS{}, folder, func(f *durable.Folder) error {
		scratch := filepath.Join(f.Path(), "scratch")
		if err := os.Mkdir(scratch, 0o777); err != nil {
			return err
		}
		if err := k.fill(ctx, f.Path(), scratch); err != nil {
			return err
		}
		if err := os.RemoveAll(scratch); err != nil {
			return err
		}
		return writeManifest(f.Path())
	})
	return err
}

// fill writes bleve's files. bleve's builder keeps a batch of passages in memory and merges the batches on the disk.
func (k indexOnDisk) fill(ctx context.Context, folder, scratch string) error {
	builder, err := bleve.NewBuilder(folder, passageMapping(), map[string]any{"batchSize": indexBatch, "buildPathPrefix": scratch})
	if err != nil {
		return err
	}
	const often = 2 * time.Second
	count, due := 0, time.Now().Add(often)
	err = eachPassage(k.corpus, func(id string, passage map[string]any) error {
		if count++; count%indexBatch == 0 && time.Now().After(due) {
			k.note(fmt.Sprintf("building the search index of %s, once: %d passages so far", k.corpus, count))
			due = time.Now().Add(often)
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		return builder.Index(id, passage)
	})
	if err == nil && count == 0 {
		err = errors.New("the corpus has no text")
	}
	if err != nil {
		return err // the builder has no open files, and its scratch folder is removed with the rest
	}
	if time.Now().After(due) {
		k.note(fmt.Sprintf("building the search index of %s, once: merging %d passages", k.corpus, count))
	}
	return builder.Close()
}

// writeManifest syncs the files of an index and writes the list of them.
func writeManifest(folder string) error {
	var files []durable.File
	err := filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			return durable.OS{}.SyncDir(path)
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		if err := errors.Join(f.Sync(), f.Close()); err != nil {
			return err
		}
		at, err := durable.Digest(path)
		if err != nil {
			return err
		}
		at.Path, err = filepath.Rel(folder, path)
		files = append(files, at)
		return err
	})
	if err != nil {
		return err
	}
	text, _ := json.MarshalIndent(files, "", " ") // texts and whole numbers always marshal
	return durable.Replace(durable.OS{}, filepath.Join(folder, indexManifest), text)
}

// openIndex opens an index for reading. It first checks every byte, because bleve trusts its files. The error is
// fs.ErrNotExist if the index does not exist.
func openIndex(folder string) (bleve.Index, error) {
	if _, err := os.Stat(folder); err != nil {
		return nil, err
	}
	if err := verifyFiles(folder); err != nil {
		// The error must not wrap fs.ErrNotExist, because the index exists.
		return nil, fmt.Errorf("the index %s is damaged: %v. Remove the folder, and the index will be built again", folder, err)
	}
	return bleve.OpenUsing(folder, map[string]any{"read_only": true})
}

// verifyFiles compares the files of an index with its list of them.
func verifyFiles(folder string) error {
	text, err := durable.ReadSmall(filepath.Join(folder, indexManifest), maxManifest)
	if err != nil {
		return err
	}
	files, err := parseManifest(text)
	if err != nil {
		return fmt.Errorf("%s: %w", indexManifest, err)
	}
	for _, want := range files {
		if err := want.Verify(folder); err != nil {
			return fmt.Errorf("%s %w", want.Path, err)
		}
	}
	return nil
}

// parseManifest reads the list of an index's files.
func parseManifest(text []byte) ([]durable.File, error) {
	var files []durable.File
	if err := json.Unmarshal(text, &files); err != nil {
		return nil, err
	}
	if len(files) < 2 || len(files) > maxIndexFiles {
		return nil, fmt.Errorf("%d files", len(files))
	}
	for _, f := range files {
		if !filepath.IsLocal(f.Path) {
			return nil, fmt.Errorf("%q is not a file within the index", f.Path)
		}
	}
	return files, nil
}
