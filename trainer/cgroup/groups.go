// Package cgroup counts the cores and the memory that the machine and its control groups leave to this process.
//
// This package is private and changes without notice; docs/library.md lists the public ones.
package cgroup

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// group is the folder of a control group. The names of its files differ between version 1 and 2.
type group struct {
	dir string
	v1  bool
}

// groups returns the control groups of this process that a controller ("memory", "cpu") may limit: its own group and the
// groups around it. root is "/" except in tests.
func groups(root, controller string) (all []group) {
	own := map[bool]string{false: "/", true: "/"} // without the file these are the outermost groups
	text, _ := os.ReadFile(filepath.Join(root, "proc/self/cgroup"))
	for line := range strings.Lines(string(text)) {
		if f := strings.SplitN(strings.TrimSpace(line), ":", 3); len(f) == 3 && (f[1] == "" || slices.Contains(strings.Split(f[1], ","), controller)) {
			own[f[1] != ""] = f[2]
		}
	}
	for _, m := range mounts(root, controller) {
		at := filepath.Clean("/" + own[m.v1])
		if inside, ok := strings.CutPrefix(at+"/", strings.TrimSuffix(m.below, "/")+"/"); ok {
			at = filepath.Clean("/" + inside) // a container sees a part of the tree
		}
		for ; at != "/"; at = filepath.Dir(at) {
			all = append(all, group{filepath.Join(m.dir, at), m.v1})
		}
		all = append(all, m.group)
	}
	return all
}

// mount is the root of a tree of control groups.
type mount struct {
	group
	below string // the group that is mounted as its root
}

// mounts returns the trees that the kernel lists, or the usual ones if there is no list.
func mounts(root, controller string) (all []mount) {
	text, _ := os.ReadFile(filepath.Join(root, "proc/self/mountinfo"))
	for line := range strings.Lines(string(text)) {
		where, what, ok := strings.Cut(line, " - ")
		fields, kinds := strings.Fields(where), strings.Fields(what)
		if !ok || len(fields) < 5 || len(kinds) < 3 {
			continue
		}
		v1 := kinds[0] == "cgroup" && slices.Contains(strings.Split(kinds[2], ","), controller)
		if v1 || kinds[0] == "cgroup2" {
			all = append(all, mount{group{filepath.Join(root, unescape(fields[4])), v1}, unescape(fields[3])})
		}
	}
	if len(all) == 0 {
		all = []mount{{group{filepath.Join(root, "sys/fs/cgroup"), false}, "/"}, {group{filepath.Join(root, "sys/fs/cgroup", controller), true}, "/"}}
	}
	return all
}

// unescape decodes a path in the format of mountinfo.
func unescape(path string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(path)
}
