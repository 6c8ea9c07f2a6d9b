package store

import (
	"embed"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"
)

// script is a Lua script whose keys and arguments have names. In its text the names are local variables. Every write is
// a script. It is atomic, and can safely be repeated if its reply was lost. A reply is an array whose first element is the
// result.
type script struct {
	*redis.Script
	keys, args []string
}

//go:embed scripts/*.lua
var luaFiles embed.FS

// The scripts of the store. The last file of each describes it.
var (
	joinScript     = newScript("drop_phases", "join")
	startScript    = fencedScript("start")
	placeScript    = fencedScript("place")
	beatScript     = fencedScript("beat")
	leaveScript    = fencedScript("leave")
	askScript      = fencedScript("ask")
	stopScript     = fencedScript("stop")
	barrierScript  = fencedScript("barrier")
	writeScript    = fencedScript("write_once", "write")
	submitScript   = fencedScript("write_once", "submit")
	claimScript    = fencedScript("claim")
	completeScript = fencedScript("complete")
	versionScript  = fencedScript("version")
	trimScript     = fencedScript("drop_phases", "trim")
	gatewayScript  = fencedScript("gateway")
	recordScript   = fencedScript("record")
	activityScript = fencedScript("activity")
)

// newScript creates a script from files of the folder scripts, in this order.
func newScript(files ...string) *script {
	texts := make([]string, len(files))
	for i, name := range files {
		text, err := luaFiles.ReadFile("scripts/" + name + ".lua")
		if err != nil {
			panic(err)
		}
		texts[i] = string(text)
	}
	return combine(texts...)
}

// header matches the comment at the beginning of a file. Its first lines name the keys and the arguments that the file uses.
var header = regexp.MustCompile(`^-- KEYS:(.*)\n-- ARGV:(.*)\n(?:--.*\n)*\n`)

// combine creates a script from the texts of files. The script has the names of all headers. A name may end in "...": its variable is an
// array of all remaining keys or arguments.
func combine(texts ...string) *script {
	s := &script{}
	var code strings.Builder
	for _, text := range texts {
		m := header.FindStringSubmatch(text)
		if m == nil {
			panic(fmt.Sprintf("store: a script does not begin with the names of its keys and arguments: %.200q", text))
		}
		s.keys, s.args = union(s.keys, strings.Fields(m[1])), union(s.args, strings.Fields(m[2]))
		code.WriteString(text[len(m[0]):])
	}
	s.Script = redis.NewScript(locals("KEYS", s.keys) + locals("ARGV", s.args) + code.String())
	return s
}

// union adds the names that a list lacks. A name that ends in "..." remains the last.
func union(names, added []string) []string {
	for _, name := range added {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	slices.SortStableFunc(names, func(a, b string) int { return strings.Count(a, "...") - strings.Count(b, "...") })
	return names
}

// locals declares local variables for the elements of a Lua array.
func locals(array string, names []string) string {
	var text strings.Builder
	for i, name := range names {
		if list, ok := strings.CutSuffix(name, "..."); ok {
			fmt.Fprintf(&text, "local %s = {}\nfor i = %d, #%s do %s[i - %d] = %s[i] end\n", list, i+1, array, list, i, array)
		} else {
			fmt.Fprintf(&text, "local %s = %s[%d]\n", name, array, i+1)
		}
	}
	return text.String()
}

// values holds the keys and arguments of a call by their names in the script. The value of a name with "..." is a []string.
type values map[string]any

// inOrder returns the keys and arguments in the script's order. It panics if their names are not the names of the script.
func (s *script) inOrder(v values) (keys []string, args []any) {
	if len(v) != len(s.keys)+len(s.args) {
		panic(fmt.Sprintf("store: a script with the names %v %v is called with %v", s.keys, s.args, v))
	}
	for _, name := range s.keys {
		if list, ok := v[name].([]string); ok {
			keys = append(keys, list...)
		} else {
			keys = append(keys, v[name].(string))
		}
	}
	for _, name := range s.args {
		switch x := v[name].(type) {
		case nil:
			panic(fmt.Sprintf("store: a script is called without its argument %s", name))
		case []string:
			for _, element := range x {
				args = append(args, element)
			}
		default:
			args = append(args, x)
		}
	}
	return keys, args
}

// fencedScript creates a script that does not change anything if the writer's fencing token is not the newest.
func fencedScript(files ...string) *script {
	return newScript(append([]string{"fence"}, files...)...)
}

// writtenBy adds the values that every fencedScript needs.
func (v values) writtenBy(at *place) values {
	v["epochs"], v["agent"], v["token"] = at.key("epochs"), at.agent, at.fencingToken()
	return v
}
