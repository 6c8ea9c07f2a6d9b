package config

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// leaf is a value of a configuration in canonical form.
type leaf struct {
	key     string // path of the key
	text    string // as YAML
	change  string // "", "resume" or "worker": the tag of the key or of a section around it
	derived bool   // other keys can imply the value if it is not given
}

// pathWriter rewrites a path for output. hub reports whether p may be a name on the Hugging Face Hub.
type pathWriter func(p Path, hub bool) Path

// visitor holds callbacks for each value, for each mapping before its values, and for rewriting paths.
type visitor struct {
	leaf func(leaf)
	open func(key string)
	path pathWriter
}

// walk visits the values of a section. around has the section's key, and what its tags determine for its values.
func walk(v reflect.Value, around leaf, visit visitor) {
	for _, f := range fields(v.Type()) {
		value, l := v.FieldByIndex(f.index), around
		l.key = join(around.key, f.key)
		l.derived = around.derived || f.tag.Get("derived") == "true" || f.tag.Get("inherits") != ""
		if own := f.tag.Get("change"); own != "" && l.change != "worker" {
			l.change = own
		}
		switch {
		case f.tag.Get("keyed") == "true":
			if value.Len() == 0 {
				continue
			}
			visit.open(l.key)
			for i := range value.Len() {
				item := value.Index(i)
				if t, ok := item.Interface().(Tool); ok {
					item = reflect.ValueOf(t).Elem()
				}
				entry := l
				entry.key = join(l.key, item.FieldByName("Name").String())
				visit.open(entry.key)
				walk(item, entry, visit)
			}
		case isSection(f.typ):
			visit.open(l.key)
			walk(value, l, visit)
		case f.typ == modelType:
			model := value.Interface().(Model)
			if keys, ok := model.section(); ok {
				visit.open(l.key)
				walk(keys, l, visit)
			} else {
				l.text = quote(string(visit.path(model.Path, true)))
				visit.leaf(l)
			}
		case f.typ.Kind() == reflect.Pointer && f.typ != optionalType && value.IsNil():
		case f.typ == pathType && !isWord(f, value.String()):
			path := visit.path(Path(value.String()), f.tag.Get("hub") == "true")
			if path != "" && isWord(f, string(path)) {
				path = "./" + path // a file with the name of a word
			}
			l.text = quote(string(path))
			visit.leaf(l)
		default:
			l.text = scalarText(value)
			visit.leaf(l)
		}
	}
}

// isWord reports whether a text is one of the words that the key of a path has instead of paths.
func isWord(f field, text string) bool {
	return slices.Contains(strings.Split(f.tag.Get("words"), "|"), text)
}

// scalarText writes a value as YAML that reads back as the same value.
func scalarText(v reflect.Value) string {
	switch x := v.Interface().(type) {
	case time.Duration:
		return x.String()
	case *float64:
		if x == nil {
			return "none"
		}
	case Variables:
		return cmp.Or(string(x), "{}")
	}
	switch v.Kind() {
	case reflect.Pointer:
		return scalarText(v.Elem())
	case reflect.Bool:
		return strconv.FormatBool(v.Bool())
	case reflect.Int, reflect.Int64:
		return strconv.FormatInt(v.Int(), 10)
	case reflect.Uint64:
		return strconv.FormatUint(v.Uint(), 10)
	case reflect.Float64:
		return formatFloat(v.Float())
	case reflect.String:
		return quote(v.String())
	case reflect.Array, reflect.Slice:
		items := make([]string, v.Len())
		for i := range items {
			items[i] = scalarText(v.Index(i))
		}
		return "[" + strings.Join(items, ", ") + "]"
	default:
		panic("config: no text for " + v.Type().String())
	}
}

var plainForm = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_]*([-./][A-Za-z0-9_]+)*$`)

// quote writes text without quotes if it cannot be mistaken for another value, and otherwise as a JSON string, which is
// valid YAML.
func quote(s string) string {
	switch strings.ToLower(s) {
	case "true", "false", "null", "yes", "no", "on", "off", "y", "n", "nan", "inf":
	default:
		if plainForm.MatchString(s) {
			return s
		}
	}
	return jsonText(s)
}

// jsonText returns a text as a JSON string.
func jsonText(s string) string {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(s); err != nil {
		panic(err) // a string always encodes
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// Dump returns the whole configuration, with defaults, as canonical YAML for a file in the folder dir. It rewrites
// relative paths so that they start from dir. Values that were not given and that other keys imply are comments, so an override of
// the text changes them as it does with the user's own file. The text contains no secrets, because a Config contains none.
func (c *Config) Dump(dir string) []byte {
	implied := c.values(asWritten, func(l leaf) bool {
		_, given := c.at[l.key]
		return l.derived && !given
	})
	for {
		text := Text(c, dir, implied)
		again, err := Parse("config.yaml", text, nil)
		if err != nil { // a program changed the configuration
			return Text(c, dir, nil)
		}
		before, read := len(implied), again.values(asWritten, func(l leaf) bool { return l.derived })
		maps.DeleteFunc(implied, func(key, value string) bool { return read[key] != value })
		if len(implied) == before {
			return text
		}
	}
}

// Text returns the text of Dump, with the keys of comments as comments. Without comments, configurations with equal values have equal
// texts, whichever values their files give.
func Text(c *Config, dir string, comments map[string]string) []byte {
	var b strings.Builder
	b.WriteString("# A value in a comment follows from other keys, and changes with them.\n")
	write := func(key, sign, value string) {
		fmt.Fprintf(&b, "%s%s%s:%s\n", strings.Repeat("  ", strings.Count(key, ".")), sign, key[strings.LastIndexByte(key, '.')+1:], value)
	}
	walk(reflect.ValueOf(*c), leaf{}, visitor{
		open: func(key string) { write(key, "", "") },
		path: c.from(dir),
		leaf: func(l leaf) {
			sign := ""
			if _, ok := comments[l.key]; ok {
				sign = "# "
			}
			write(l.key, sign, " "+l.text)
		},
	})
	return []byte(b.String())
}

// Shared returns the values of the keys on which the workers of a team must agree. It omits keys marked "worker".
func (c *Config) Shared() map[string]string {
	return c.values(asWritten, func(l leaf) bool { return l.change != "worker" })
}

// Digest returns the SHA-256, in hex, of the keys that must not change between a checkpoint and its resume. It omits
// paths, because files may move.
func (c *Config) Digest() string {
	fixed := c.values(func(Path, bool) Path { return "" }, isFixed)
	h := sha256.New()
	for _, key := range slices.Sorted(maps.Keys(fixed)) {
		fmt.Fprintf(h, "%s: %s\n", key, fixed[key])
	}
	return hex.EncodeToString(h.Sum(nil))
}

// DiffForResume returns a line "key: old -> new" for each key that differs from the earlier configuration but must not
// change. It returns no lines if the run can be resumed.
func (c *Config) DiffForResume(old *Config) []string {
	return diff(old.values(old.from(old.dir), isFixed), c.values(c.from(old.dir), isFixed))
}

// ChangedOnResume returns a line "key: old -> new" for each key of the task, the algorithm and the agents that differs
// from the earlier configuration and may change. These changes affect the following steps.
func (c *Config) ChangedOnResume(old *Config) []string {
	learning := func(of *Config) map[string]string {
		keys := of.values(of.from(old.dir), func(l leaf) bool { return l.change == "resume" })
		maps.DeleteFunc(keys, func(key, _ string) bool {
			return strings.HasPrefix(key, "run.") || strings.HasPrefix(key, "eval.") || strings.HasPrefix(key, "task.eval") || key == "agents"
		})
		return keys
	}
	return diff(learning(old), learning(c))
}

// diff returns a line "key: old -> new" for each key whose values differ, sorted by key.
func diff(old, new map[string]string) []string {
	keys := maps.Clone(old)
	maps.Copy(keys, new)
	var out []string
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		a, inOld := old[key]
		b, inNew := new[key]
		if !inOld {
			a = "absent"
		}
		if !inNew {
			b = "absent"
		}
		if a != b {
			out = append(out, fmt.Sprintf("%s: %s -> %s", key, a, b))
		}
	}
	return out
}

// isFixed reports whether a value must stay the same for a whole run.
func isFixed(l leaf) bool { return l.change == "" }

func asWritten(p Path, _ bool) Path { return p }

// values returns the leaves for which want is true, by key, and the order of agents.
func (c *Config) values(path pathWriter, want func(leaf) bool) map[string]string {
	var names []string
	for _, a := range c.Agents {
		names = append(names, a.Name)
	}
	out := map[string]string{"agents": "[" + strings.Join(names, ", ") + "]"}
	walk(reflect.ValueOf(*c), leaf{}, visitor{
		open: func(string) {},
		path: path,
		leaf: func(l leaf) {
			if want(l) {
				out[l.key] = l.text
			}
		},
	})
	return out
}
