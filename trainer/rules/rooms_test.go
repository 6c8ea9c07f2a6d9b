package rules

import (
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// room is a line of rooms.txt.
type room struct {
	folder string   // from the root of the repository
	uses   []string // rooms by their folder from the root, folders with all rooms below them ("trainer/..."), or parts of a module's path
}

var (
	quoted = regexp.MustCompile("`([^`]+)`")
	below  = regexp.MustCompile(`^[\w-]+/$`) // a folder below a row's folder
)

// rooms reads rooms.txt.
func rooms(t *testing.T) []room {
	t.Helper()
	var out []room
	for line := range strings.Lines(read(t, "trainer/rules/rooms.txt")) {
		folder, uses, ok := strings.Cut(line, ":")
		if !ok || strings.HasPrefix(line, "#") {
			continue
		}
		r := room{folder: strings.Trim(folder, "/")}
		for _, use := range strings.Fields(uses) {
			name, below := strings.CutSuffix(use, "/...")
			if name = folderOf(name); below {
				name += "/..."
			}
			r.uses = append(r.uses, name)
		}
		out = append(out, r)
	}
	if len(out) < 20 {
		t.Fatalf("rooms.txt has %d rooms", len(out))
	}
	return out
}

// folderOf returns the folder of this name in trainer/ or at the root, or the name if there is no such folder.
func folderOf(name string) string {
	for _, folder := range []string{"trainer/" + name, name} {
		if info, err := os.Stat(path.Join(root, folder)); err == nil && info.IsDir() {
			return folder
		}
	}
	return name
}

// roomOf returns the room of a folder: the one with the longest path that contains it.
func roomOf(rooms []room, folder string) (found room) {
	for _, r := range rooms {
		if within(folder+"/", r.folder) && len(r.folder) > len(found.folder) {
			found = r
		}
	}
	return found
}

// standard reports whether an import belongs to Go's standard library.
func standard(imported string) bool {
	first, _, _ := strings.Cut(imported, "/")
	return !strings.Contains(first, ".")
}

// allowedBy returns the entry of the room's line that allows an import, and whether the import is allowed.
func (r room) allowedBy(all []room, imported string) (entry string, ok bool) {
	folder, ours := strings.CutPrefix(imported, module)
	if !ours {
		for _, use := range r.uses {
			if strings.Contains("/"+imported+"/", "/"+use+"/") {
				return use, true
			}
		}
		return "", standard(imported)
	}
	into := roomOf(all, folder).folder
	if into == r.folder {
		return "", true
	}
	for _, use := range r.uses {
		if above, below := strings.CutSuffix(use, "/..."); use == into || below && within(folder+"/", above) {
			return use, true
		}
	}
	return "", false
}

// TestRooms checks every import of a Go file, except tests, and that each entry of rooms.txt is used.
func TestRooms(t *testing.T) {
	all, used := rooms(t), map[string][]string{}
	eachImport(t, func(file, imported string) {
		if strings.HasSuffix(file, "_test.go") || imported == "C" || within(file, "examples") {
			return
		}
		r := roomOf(all, path.Dir(file))
		entry, ok := r.allowedBy(all, imported)
		switch {
		case r.folder == "":
			t.Errorf("%s is in no room of rooms.txt", file)
		case !ok:
			t.Errorf("%s imports %q, which %s/ may not use", file, imported, r.folder)
		}
		used[r.folder] = append(used[r.folder], entry)
	})
	for _, r := range all {
		for _, use := range r.uses {
			if !slices.Contains(used[r.folder], use) {
				t.Errorf("%s/ may use %s and does not: remove it from rooms.txt", r.folder, use)
			}
		}
	}
}

// TestRoomsAreDescribed checks that the tables of docs/rooms.md have the rooms of rooms.txt and the folders of the root without a room,
// and that each `folder/` in the text of a row exists below the row's folder.
func TestRoomsAreDescribed(t *testing.T) {
	_, tables, _ := strings.Cut(read(t, "docs/rooms.md"), "\n## Folders\n")
	tables, _, _ = strings.Cut(tables, "\n## ")
	described := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([^`]+)/` \\|(.*)").FindAllStringSubmatch(tables, -1) {
		described[m[1]] = true
		for _, name := range quoted.FindAllStringSubmatch(m[2], -1) {
			if !below.MatchString(name[1]) {
				continue
			}
			if _, err := os.Stat(path.Join(root, m[1], name[1])); err != nil {
				t.Errorf("docs/rooms.md, row %s/: %v", m[1], err)
			}
		}
	}
	expected := map[string]bool{}
	for _, r := range rooms(t) {
		expected[r.folder] = true
	}
	for _, folder := range outsideRooms(t) {
		expected[folder] = true
	}
	for folder := range expected {
		if !described[folder] && !strings.HasPrefix(folder, ".") { // an editor or a tool may add hidden folders
			t.Errorf("docs/rooms.md does not describe %s/", folder)
		}
	}
	for folder := range described {
		if !expected[folder] {
			t.Errorf("docs/rooms.md describes %s/, which is neither in rooms.txt nor a folder of the root without a room", folder)
		}
	}
}

// outsideRooms returns the folders of the root that contain no room.
func outsideRooms(t *testing.T) (folders []string) {
	all := rooms(t)
	eachFile(t, func(file string, _ []byte) {
		folder, _, nested := strings.Cut(file, "/")
		hasRoom := func(r room) bool { return within(r.folder+"/", folder) }
		if nested && !slices.Contains(folders, folder) && !slices.ContainsFunc(all, hasRoom) {
			folders = append(folders, folder)
		}
	})
	return folders
}

// TestRoomsRefuse checks that each room refuses some module and some room.
func TestRoomsRefuse(t *testing.T) {
	all := rooms(t)
	for _, r := range all {
		if _, ok := r.allowedBy(all, "github.com/elsewhere/module"); ok {
			t.Errorf("%s/ may import any module", r.folder)
		}
		refused := slices.ContainsFunc(all, func(other room) bool {
			_, ok := r.allowedBy(all, module+other.folder)
			return !ok
		})
		if !refused {
			t.Errorf("%s/ may import every room", r.folder)
		}
	}
}
