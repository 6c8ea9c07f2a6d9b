package ordered

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Tuple is a Python tuple. JSON has no tuples, but templates make them.
type Tuple []any

// String returns the tuple's repr, or the text of the error.
func (t Tuple) String() string {
	s, err := Repr(t)
	if err != nil {
		return err.Error()
	}
	return s
}

// Dict is a Python dictionary with keys that are not all strings. JSON has no such dictionaries, but templates make them. Keys and Values
// have the same length.
type Dict struct{ Keys, Values []any }

// View is the result of a dictionary's keys, values or items.
type View struct {
	Name  string // dict_keys, dict_values or dict_items
	Items []any
}

// maxText is the size of the longest text of Dumps, Str and Repr, in bytes. A list that contains another list twice, at
// many levels, has a text of exponential size.
const maxText = 64 << 20

var errText = fmt.Errorf("the text of a value is longer than %d MiB", maxText>>20)

// TypeName returns the Python name of a value's type, for messages.
func TypeName(v any) string {
	switch v := v.(type) {
	case nil:
		return "NoneType"
	case bool:
		return "bool"
	case int64, *big.Int:
		return "int"
	case float64:
		return "float"
	case string:
		return "str"
	case []any:
		return "list"
	case Tuple:
		return "tuple"
	case *Object, *Dict:
		return "dict"
	case View:
		return v.Name
	}
	return fmt.Sprintf("%T", v)
}

// Format is the layout of Dumps. The zero Format is the layout of Python's json.dumps(x, ensure_ascii=False).
type Format struct {
	Indent        *string // nil: one line
	ItemSeparator string  // "": ", ", or "," with an indent
	KeySeparator  string  // "": ": "
	SortKeys      bool
	ASCII         bool // escape all characters beyond ASCII
}

// Dumps writes a value as Python's json.dumps does.
func Dumps(v any, f Format) (string, error) {
	if f.ItemSeparator == "" {
		f.ItemSeparator = ", "
		if f.Indent != nil {
			f.ItemSeparator = ","
		}
	}
	if f.KeySeparator == "" {
		f.KeySeparator = ": "
	}
	w := writer{Format: f}
	if err := w.value(v, 0); err != nil {
		return "", err
	}
	return w.String(), nil
}

// Str prints a value as Python's str does.
func Str(v any) (string, error) {
	if s, ok := v.(string); ok {
		return s, nil
	}
	return Repr(v)
}

// Repr prints a value as Python's repr does.
func Repr(v any) (string, error) {
	w := writer{Format: Format{ItemSeparator: ", ", KeySeparator: ": "}, python: true}
	err := w.value(v, 0)
	return w.String(), err
}

// writer writes JSON or, if python is set, Python's repr.
type writer struct {
	strings.Builder
	Format
	python bool
}

// constant writes a constant, whose name in JSON differs from its name in Python.
func (w *writer) constant(json, python string) {
	if w.python {
		json = python
	}
	w.WriteString(json)
}

// jsonFloats replaces Python's names of floats that are not finite.
var jsonFloats = strings.NewReplacer("nan", "NaN", "inf", "Infinity")

func (w *writer) value(v any, depth int) error {
	if depth > 2*MaxDepth {
		return fmt.Errorf("value nested deeper than %d", 2*MaxDepth)
	}
	if w.Len() > maxText {
		return errText
	}
	switch v := v.(type) {
	case nil:
		w.constant("null", "None")
	case bool:
		if v {
			w.constant("true", "True")
		} else {
			w.constant("false", "False")
		}
	case int64:
		w.WriteString(strconv.FormatInt(v, 10))
	case *big.Int:
		w.WriteString(v.String())
	case float64:
		text := floatRepr(v)
		w.constant(jsonFloats.Replace(text), text)
	case string:
		w.quote(v)
	case []any:
		return w.list("[", v, "]", depth+1)
	case Tuple:
		switch {
		case !w.python:
			return w.list("[", v, "]", depth+1)
		case len(v) == 1:
			return w.list("(", v, ",)", depth+1)
		}
		return w.list("(", v, ")", depth+1)
	case *Object:
		return w.object(v, depth+1)
	case *Dict:
		return w.dict(v, depth+1)
	case View:
		if !w.python {
			return fmt.Errorf("Object of type %s is not JSON serializable", v.Name)
		}
		w.WriteString(v.Name + "(")
		defer w.WriteString(")")
		return w.list("[", v.Items, "]", depth+1)
	default:
		if !w.python {
			return fmt.Errorf("Object of type %s is not JSON serializable", TypeName(v))
		}
		named, ok := v.(fmt.Stringer)
		if !ok {
			return fmt.Errorf("a value of type %T cannot be printed", v)
		}
		w.WriteString(named.String())
	}
	return nil
}

func (w *writer) list(open string, list []any, end string, depth int) error {
	w.WriteString(open)
	for i, e := range list {
		w.separate(i, depth)
		if err := w.value(e, depth); err != nil {
			return err
		}
	}
	w.end(len(list), depth)
	w.WriteString(end)
	return nil
}

func (w *writer) object(o *Object, depth int) error {
	keys := o.Keys()
	if w.SortKeys {
		keys = slices.Sorted(slices.Values(keys))
	}
	w.WriteByte('{')
	for i, k := range keys {
		w.separate(i, depth)
		w.quote(k)
		w.WriteString(w.KeySeparator)
		if err := w.value(o.values[k], depth); err != nil {
			return err
		}
	}
	w.end(len(keys), depth)
	w.WriteByte('}')
	return nil
}

// dict writes a dictionary. In JSON its keys are texts.
func (w *writer) dict(d *Dict, depth int) error {
	if w.SortKeys {
		return errors.New("sort_keys of a dictionary whose keys are not all strings is not supported")
	}
	w.WriteByte('{')
	for i, k := range d.Keys {
		w.separate(i, depth)
		if err := w.key(k, depth); err != nil {
			return err
		}
		w.WriteString(w.KeySeparator)
		if err := w.value(d.Values[i], depth); err != nil {
			return err
		}
	}
	w.end(len(d.Keys), depth)
	w.WriteByte('}')
	return nil
}

func (w *writer) key(k any, depth int) error {
	if _, isText := k.(string); w.python || isText {
		return w.value(k, depth)
	}
	name, err := Dumps(k, Format{})
	w.quote(name)
	return err
}

func (w *writer) separate(i, depth int) {
	if i > 0 {
		w.WriteString(w.ItemSeparator)
	}
	w.newline(depth)
}

func (w *writer) end(n, depth int) {
	if n > 0 {
		w.newline(depth - 1)
	}
}

func (w *writer) newline(depth int) {
	if w.Indent != nil {
		w.WriteString("\n" + strings.Repeat(*w.Indent, depth))
	}
}

func (w *writer) quote(s string) {
	if w.python {
		w.WriteString(stringRepr(s))
		return
	}
	w.WriteByte('"')
	for _, r := range s {
		short := strings.IndexRune("\"\\\b\f\n\r\t", r)
		switch {
		case short >= 0:
			w.WriteByte('\\')
			w.WriteByte(`"\bfnrt`[short])
		case r < 0x20 || w.ASCII && r > 0x7e && r < 0x10000:
			fmt.Fprintf(w, `\u%04x`, r)
		case w.ASCII && r >= 0x10000:
			fmt.Fprintf(w, `\u%04x\u%04x`, 0xd800+(r-0x10000)>>10, 0xdc00+(r-0x10000)&0x3ff)
		default:
			w.WriteRune(r)
		}
	}
	w.WriteByte('"')
}

// floatRepr formats a float as Python's repr does: with the shortest digits that parse to the same value, and always with a
// point or an exponent. It uses an exponent from 1e16 up and below 1e-4.
func floatRepr(f float64) string {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return strings.TrimPrefix(strings.ToLower(strconv.FormatFloat(f, 'g', -1, 64)), "+")
	}
	if a := math.Abs(f); a != 0 && (a >= 1e16 || a < 1e-4) {
		return strconv.FormatFloat(f, 'e', -1, 64)
	}
	s := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}

// stringRepr quotes a string as Python's repr does: in single quotes unless only double quotes avoid escapes, with
// unprintable characters as \x, \u or \U.
func stringRepr(s string) string {
	quote := '\''
	if strings.Contains(s, "'") && !strings.Contains(s, `"`) {
		quote = '"'
	}
	var w strings.Builder
	w.Grow(len(s) + 2)
	w.WriteRune(quote)
	for _, r := range s {
		short := strings.IndexRune("\n\r\t", r)
		switch {
		case r == quote || r == '\\':
			w.WriteByte('\\')
			w.WriteRune(r)
		case short >= 0:
			w.WriteByte('\\')
			w.WriteByte("nrt"[short])
		case unicode.IsPrint(r) || r == utf8.RuneError:
			w.WriteRune(r)
		case r < 0x100:
			fmt.Fprintf(&w, `\x%02x`, r)
		case r < 0x10000:
			fmt.Fprintf(&w, `\u%04x`, r)
		default:
			fmt.Fprintf(&w, `\U%08x`, r)
		}
	}
	w.WriteRune(quote)
	return w.String()
}
