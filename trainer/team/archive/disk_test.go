package archive

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/internal/durable"
)

// noSyncFS is the real file system, except that it does not wait for the disk.
type noSyncFS struct{ durable.OS }

type unsyncedFile struct{ durable.WriteFile }

func (unsyncedFile) Sync() error           { return nil }
func (noSyncFS) SyncDir(path string) error { return nil }

func (u noSyncFS) Create(path string) (durable.WriteFile, error) {
	f, err := u.OS.Create(path)
	return unsyncedFile{f}, err
}

// journal is a durable.FS that works in a real folder, which package os can read. It records
// the operations, so that a test can replay them up to a crash after each one.
type journal struct {
	root string
	ops  []func(*disk)
}

func (j *journal) log(path string, op func(d *disk, path string)) {
	rel, err := filepath.Rel(j.root, path)
	if err != nil || !filepath.IsLocal(rel) {
		panic(path + " is outside of " + j.root)
	}
	j.ops = append(j.ops, func(d *disk) { op(d, rel) })
}

func (j *journal) Mkdir(path string) error {
	err := durable.OS{}.Mkdir(path)
	if err == nil {
		j.log(path, func(d *disk, path string) { d.link(path, newInode(true)) })
	}
	return err
}

func (j *journal) Create(path string) (durable.WriteFile, error) {
	f, err := durable.OS{}.Create(path)
	if err != nil {
		return nil, err
	}
	j.log(path, func(d *disk, path string) { d.link(path, newInode(false)) })
	return j.open(f, path), nil
}

func (j *journal) Rename(from, to string) error {
	err := durable.OS{}.Rename(from, to)
	if err == nil {
		rel, _ := filepath.Rel(j.root, to)
		j.log(from, func(d *disk, from string) {
			n := d.find(from)
			d.unlink(from)
			d.link(rel, n)
		})
	}
	return err
}

func (j *journal) Link(from, to string) error {
	err := durable.OS{}.Link(from, to)
	if err == nil {
		rel, _ := filepath.Rel(j.root, to)
		j.log(from, func(d *disk, from string) { d.link(rel, d.find(from)) })
	}
	return err
}

func (j *journal) RemoveAll(path string) error {
	_, gone := os.Lstat(path)
	err := durable.OS{}.RemoveAll(path)
	if err == nil && gone == nil {
		j.log(path, func(d *disk, path string) {
			d.find(path).empty()
			d.unlink(path)
		})
	}
	return err
}

func (j *journal) SyncDir(path string) error {
	err := durable.OS{}.SyncDir(path)
	if err == nil {
		j.log(path, func(d *disk, path string) {
			n := d.find(path)
			n.durableEntries = maps.Clone(n.entries)
		})
	}
	return err
}

// open returns the file at path. Its operations apply to its inode, because the file may be renamed later.
func (j *journal) open(f durable.WriteFile, path string) durable.WriteFile {
	var node *inode
	j.log(path, func(d *disk, path string) { node = d.find(path) })
	return &journalFile{f, path, j, &node}
}

type journalFile struct {
	durable.WriteFile
	path string
	j    *journal
	node **inode // set again by every replay
}

func (f *journalFile) Write(p []byte) (int, error) {
	n, err := f.WriteFile.Write(p)
	p = slices.Clone(p[:n])
	f.j.log(f.path, func(*disk, string) { (*f.node).data = append((*f.node).data, p...) })
	return n, err
}

func (f *journalFile) Sync() error {
	err := f.WriteFile.Sync()
	if err == nil {
		f.j.log(f.path, func(*disk, string) { (*f.node).durable = slices.Clone((*f.node).data) })
	}
	return err
}

// disk is the content of a file system. It has two versions: the one that programs see, and the
// durable one. After a power cut the content is between the two.
type disk struct{ root *inode }

type inode struct {
	entries, durableEntries map[string]*inode // of a folder
	data, durable           []byte            // of a file
}

func newInode(folder bool) *inode {
	if folder {
		return &inode{entries: map[string]*inode{}, durableEntries: map[string]*inode{}}
	}
	return &inode{}
}

func (d *disk) find(path string) *inode {
	n := d.root
	for _, name := range strings.Split(path, "/") {
		if name != "." && n != nil {
			n = n.entries[name]
		}
	}
	return n
}

func (d *disk) link(path string, n *inode) {
	d.find(filepath.Dir(path)).entries[filepath.Base(path)] = n
}

func (d *disk) unlink(path string) {
	delete(d.find(filepath.Dir(path)).entries, filepath.Base(path))
}

func (n *inode) empty() {
	for name, child := range n.entries {
		child.empty()
		delete(n.entries, name)
	}
}

// readDisk reads a folder as completely durable.
func readDisk(t *testing.T, path string) *inode {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	n := newInode(info.IsDir())
	if !info.IsDir() {
		if n.data, err = os.ReadFile(path); err != nil {
			t.Fatal(err)
		}
		n.durable = slices.Clone(n.data)
		return n
	}
	children, err := os.ReadDir(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range children {
		n.entries[c.Name()] = readDisk(t, filepath.Join(path, c.Name()))
	}
	n.durableEntries = maps.Clone(n.entries)
	return n
}

// loss determines what a crash leaves of operations that are not durable.
type loss struct {
	name    string
	entries func(n *inode) map[string]*inode
	data    func(n *inode) []byte
}

// losses returns ways to lose operations: all or none of the names, with all, none or half of the data, and random mixtures.
func losses(seeds ...uint64) []loss {
	keepNames := func(n *inode) map[string]*inode { return n.entries }
	dropNames := func(n *inode) map[string]*inode { return n.durableEntries }
	keepData := func(n *inode) []byte { return n.data }
	dropData := func(n *inode) []byte { return n.durable }
	out := []loss{
		{"nothing lost", keepNames, keepData}, {"all lost", dropNames, dropData}, {"data lost", keepNames, dropData},
		{"names lost", dropNames, keepData}, {"half of the data lost", keepNames, (*inode).half},
	}
	for _, seed := range seeds {
		random := rand.New(rand.NewPCG(seed, 0))
		out = append(out, loss{fmt.Sprintf("lost by chance (%d)", seed),
			func(n *inode) map[string]*inode {
				return []func(*inode) map[string]*inode{keepNames, dropNames}[random.IntN(2)](n)
			},
			func(n *inode) []byte {
				return []func(*inode) []byte{keepData, dropData, (*inode).half}[random.IntN(3)](n)
			}})
	}
	return out
}

// half returns the durable part of the data and half of the rest.
func (n *inode) half() []byte {
	common := 0
	for common < min(len(n.data), len(n.durable)) && n.data[common] == n.durable[common] {
		common++
	}
	return n.data[:common+(len(n.data)-common)/2]
}

// image adds to out the folder or file that a crash leaves: the contents of each file by path,
// and "" for each folder, whose path ends in a slash.
func (l loss) image(n *inode, path string, out map[string]string) {
	if n.entries == nil {
		out[path] = string(l.data(n))
		return
	}
	out[path+"/"] = ""
	entries := l.entries(n)
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		l.image(entries[name], path+"/"+name, out)
	}
}

// writeImage writes the files of an image into a new folder.
func writeImage(t *testing.T, dir string, image map[string]string) {
	t.Helper()
	for _, path := range slices.Sorted(maps.Keys(image)) { // folders come before their files
		if full := filepath.Join(dir, path); !strings.HasSuffix(path, "/") {
			writeFile(t, full, []byte(image[path]))
		} else if err := os.Mkdir(full, 0o777); err != nil {
			t.Fatal(err)
		}
	}
}

// crash is the state after a crash.
type crash struct {
	dir  string // folder with the remaining files
	done int    // number of operations before the crash
	how  string
	goOn bool // whether to test how the run continues too, which takes longer
}

// crashes replays the recorded operations on the files in before and stops after every operation, with every kind of loss. It
// calls then once for each different state between two marks. Marks are numbers of operations after which the expectations change.
func (j *journal) crashes(t *testing.T, before string, marks []int, then func(c crash)) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "after")
	seen := map[string]bool{}
	for done := range len(j.ops) + 1 {
		phase := 0
		for _, m := range marks {
			if done >= m {
				phase++
			}
		}
		all := losses(uint64(done))
		for i, l := range all {
			d := &disk{root: readDisk(t, before)}
			for _, op := range j.ops[:done] {
				op(d)
			}
			image := map[string]string{}
			l.image(d.root, "", image)
			if key := fmt.Sprint(phase, image); seen[key] {
				continue
			} else {
				seen[key] = true
			}
			writeImage(t, dir, image)
			then(crash{dir, done, fmt.Sprintf("crash after %d of %d operations, %s", done, len(j.ops), l.name), len(seen)%len(all) == i})
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Logf("%d operations, %d different states after a crash", len(j.ops), len(seen))
}
