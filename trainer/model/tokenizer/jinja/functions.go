package jinja

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/ordered"
)

// maxRange is the longest range, the limit of Jinja's sandbox.
const maxRange = 100_000

// functions are the global functions: the Jinja functions that chat templates use, and Hugging Face's raise_exception and
// strftime_now.
var functions = map[string]any{"range": function(rangeFunction), "dict": function(dictFunction), "namespace": function(namespaceFunction),
	"raise_exception": function(raiseFunction), "strftime_now": function(strftimeFunction)}

func rangeFunction(r *renderer, args arguments) (any, error) {
	if err := args.count(1, 3); err != nil || args.named.Len() > 0 {
		return nil, fmt.Errorf("range: want 1 to 3 integers")
	}
	var n [3]int64
	for i, v := range args.list {
		var ok bool
		if n[i], ok = integer(v); !ok {
			return nil, fmt.Errorf("range: '%s' object cannot be interpreted as an integer", typeName(v))
		}
	}
	start, stop, step := int64(0), n[0], int64(1)
	if len(args.list) > 1 {
		start, stop = n[0], n[1]
	}
	if len(args.list) > 2 {
		step = n[2]
	}
	if step == 0 {
		return nil, fmt.Errorf("range: the step is zero")
	}
	out := []any{}
	for i := start; step > 0 && i < stop || step < 0 && i > stop; {
		if len(out) == maxRange {
			return nil, fmt.Errorf("range too big: the sandbox blocks ranges larger than %d", maxRange)
		}
		out = append(out, i)
		next := i + step
		if (next > i) != (step > 0) {
			break
		}
		i = next
	}
	return out, r.spend(24 * len(out))
}

func dictFunction(r *renderer, args arguments) (any, error) {
	o := &ordered.Object{}
	for _, v := range args.list {
		from, ok := v.(*ordered.Object)
		if !ok || len(args.list) > 1 {
			return nil, fmt.Errorf("dict: want one dictionary, or keyword arguments")
		}
		o = from.Clone()
	}
	for key, v := range args.named.All() {
		o.Set(key, v)
	}
	return o, r.spend(64 * o.Len())
}

func namespaceFunction(r *renderer, args arguments) (any, error) {
	ns := &namespace{vars: map[string]any{}}
	for _, v := range args.list {
		from, ok := v.(*ordered.Object)
		if !ok {
			return nil, fmt.Errorf("namespace: want a dictionary or keyword arguments, have %s", typeName(v))
		}
		maps.Insert(ns.vars, from.All())
	}
	maps.Insert(ns.vars, args.named.All())
	return ns, r.spend(64 * len(ns.vars))
}

// ErrRaised marks the error of raise_exception, by which a template refuses a conversation.
var ErrRaised = errors.New("raised by the template")

func raiseFunction(r *renderer, args arguments) (any, error) {
	message, err := str(args.at(0, "message", ""))
	if err != nil {
		return nil, err
	}
	return nil, fmt.Errorf("%w: %s", ErrRaised, message)
}

// strftimeFunction formats the time given to Render. Hugging Face's strftime_now formats the clock's time.
func strftimeFunction(r *renderer, args arguments) (any, error) {
	format, err := args.text(0, "format")
	if err != nil {
		return nil, withName("strftime_now", err)
	}
	return strftime(r.now, format)
}

var timeFormats = map[byte]string{'a': "Mon", 'A': "Monday", 'b': "Jan", 'B': "January", 'd': "02", 'H': "15", 'I': "03",
	'j': "002", 'm': "01", 'M': "04", 'p': "PM", 'S': "05", 'y': "06", 'Y': "2006", 'F': "2006-01-02",
	'T': "15:04:05", 'D': "01/02/06", 'e': "_2"}

func strftime(at time.Time, format string) (string, error) {
	var out strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' {
			out.WriteByte(format[i])
			continue
		}
		i++
		switch {
		case i == len(format):
			return "", fmt.Errorf("strftime_now: the format ends in %%")
		case format[i] == '%':
			out.WriteByte('%')
		case format[i] == 'Z' || format[i] == 'z': // Python's time has no zone
		case format[i] == '-' && i+1 < len(format) && timeFormats[format[i+1]] != "":
			i++
			text := strings.TrimLeft(at.Format(timeFormats[format[i]]), "0 ")
			if text == "" {
				text = "0"
			}
			out.WriteString(text)
		case timeFormats[format[i]] != "":
			out.WriteString(at.Format(timeFormats[format[i]]))
		default:
			return "", fmt.Errorf("strftime_now: the directive %%%c is not supported", format[i])
		}
	}
	return out.String(), nil
}
