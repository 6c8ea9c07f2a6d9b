package jinja

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/cases"
	"golang.org/x/text/language"

	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/ordered"
)

// A methodOf evaluates a Python method of a string, list or dictionary, or a filter.
type methodOf[T any] func(r *renderer, v T, args arguments) (any, error)

// withArity checks the number of arguments first.
func withArity[T any](low, high int, m methodOf[T]) methodOf[T] {
	return func(r *renderer, v T, args arguments) (any, error) {
		if err := args.count(low, high); err != nil {
			return nil, err
		}
		return m(r, v, args)
	}
}

// method returns a method bound to its value.
func method(object any, name string) (function, bool) {
	if s, ok := text(object); ok {
		return bindMethod(stringMethods, "str.", name, s, len(s))
	}
	if d, ok := dictionaryOf(object); ok {
		return bindMethod(dictMethods, "dict.", name, d, 0)
	}
	if items, ok := list(object); ok {
		return bindMethod(listMethods, "list.", name, items, 0)
	}
	return nil, false
}

func bindMethod[T any](methods map[string]methodOf[T], kind, name string, v T, cost int) (function, bool) {
	m, ok := methods[name]
	return func(r *renderer, args arguments) (any, error) {
		if err := r.spend(cost); err != nil {
			return nil, err
		}
		out, err := m(r, v, args)
		return out, withName(kind+name, err)
	}, ok
}

func withName(name string, err error) error {
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// refuse implements the methods that change their value, which Hugging Face's sandbox forbids.
func refuse[T any](r *renderer, v T, args arguments) (any, error) {
	return nil, errors.New("changing a value is not allowed in a chat template")
}

var listMethods = map[string]methodOf[[]any]{
	"index": func(r *renderer, items []any, args arguments) (any, error) {
		wanted, err := args.only()
		if err != nil {
			return nil, err
		}
		for i, v := range items {
			if same, err := r.equal(v, wanted); err != nil || same {
				return int64(i), err
			}
		}
		return nil, fmt.Errorf("the value is not in the list")
	},
	"count": func(r *renderer, items []any, args arguments) (any, error) {
		wanted, err := args.only()
		if err != nil {
			return nil, err
		}
		n := int64(0)
		for _, v := range items {
			if same, err := r.equal(v, wanted); err != nil {
				return nil, err
			} else if same {
				n++
			}
		}
		return n, nil
	},
	"append": refuse[[]any], "extend": refuse[[]any], "insert": refuse[[]any], "pop": refuse[[]any],
	"remove": refuse[[]any], "reverse": refuse[[]any], "sort": refuse[[]any], "clear": refuse[[]any],
}

var stringMethods = map[string]methodOf[string]{
	"strip":        withArity(0, 1, stripMethod(strings.TrimFunc)),
	"lstrip":       withArity(0, 1, stripMethod(strings.TrimLeftFunc)),
	"rstrip":       withArity(0, 1, stripMethod(strings.TrimRightFunc)),
	"split":        withArity(0, 2, splitMethod(false)),
	"rsplit":       withArity(0, 2, splitMethod(true)),
	"splitlines":   withArity(0, 1, (*renderer).lines),
	"startswith":   withArity(1, 1, affixMethod(strings.HasPrefix)),
	"endswith":     withArity(1, 1, affixMethod(strings.HasSuffix)),
	"upper":        mapMethod(upper),
	"lower":        mapMethod(lower),
	"casefold":     mapMethod(func(s string) string { return cases.Fold().String(s) }),
	"format":       formatMethod,
	"title":        mapMethod(title),
	"capitalize":   mapMethod(capitalize),
	"swapcase":     mapMethod(swapCase),
	"replace":      withArity(2, 3, (*renderer).replace),
	"join":         withArity(1, 1, joinMethod),
	"find":         withArity(1, 1, findMethod(strings.Index, false)),
	"rfind":        withArity(1, 1, findMethod(strings.LastIndex, false)),
	"index":        withArity(1, 1, findMethod(strings.Index, true)),
	"rindex":       withArity(1, 1, findMethod(strings.LastIndex, true)),
	"count":        withArity(1, 1, ofArgument("sub", func(s, sub string) any { return int64(strings.Count(s, sub)) })),
	"removeprefix": ofArgument("prefix", func(s, prefix string) any { return strings.TrimPrefix(s, prefix) }),
	"removesuffix": ofArgument("prefix", func(s, suffix string) any { return strings.TrimSuffix(s, suffix) }),
	"partition":    partitionMethod(strings.Index),
	"rpartition":   partitionMethod(strings.LastIndex),
	"isdigit":      everyMethod(unicode.IsDigit),
	"isnumeric":    everyMethod(unicode.IsNumber),
	"isdecimal":    everyMethod(unicode.IsDigit),
	"isalpha":      everyMethod(unicode.IsLetter),
	"isalnum":      everyMethod(func(r rune) bool { return unicode.IsLetter(r) || unicode.IsNumber(r) }),
	"isspace":      everyMethod(isSpace),
	"isupper":      caseMethod(unicode.IsUpper, unicode.IsLower),
	"islower":      caseMethod(unicode.IsLower, unicode.IsUpper),
}

// count checks the number of arguments.
func (a arguments) count(low, high int) error {
	if n := len(a.list) + a.named.Len(); n < low || n > high {
		return fmt.Errorf("%d arguments, want %d to %d", n, low, high)
	}
	return nil
}

// only returns the single argument, which must not have a name.
func (a arguments) only() (any, error) {
	if len(a.list) != 1 || a.named.Len() > 0 {
		return nil, fmt.Errorf("%d arguments, want 1 without a name", len(a.list)+a.named.Len())
	}
	return a.list[0], nil
}

// at returns the argument at an index or with a name. If there is no such argument, it returns absent.
func (a arguments) at(i int, name string, absent any) any {
	if i < len(a.list) {
		return a.list[i]
	}
	if v, ok := a.named.Get(name); ok {
		return v
	}
	return absent
}

// text returns a string argument.
func (a arguments) text(i int, name string) (string, error) {
	v := a.at(i, name, undefined{"the argument " + name})
	if u, ok := v.(undefined); ok {
		return "", u.err()
	}
	s, ok := text(v)
	if !ok {
		return "", fmt.Errorf("must be str, not %s", typeName(v))
	}
	return s, nil
}

func mapMethod(f func(string) string) methodOf[string] {
	return func(r *renderer, s string, args arguments) (any, error) { return f(s), args.count(0, 0) }
}

// stripMethod does the same as Python's strip: it removes white space, or all characters in chars.
func stripMethod(trim func(string, func(rune) bool) string) methodOf[string] {
	return func(r *renderer, s string, args arguments) (any, error) {
		drop := isSpace
		if chars := args.at(0, "chars", nil); chars != nil {
			set, ok := text(chars)
			if !ok {
				return nil, fmt.Errorf("strip arg must be None or str, not %s", typeName(chars))
			}
			drop = func(r rune) bool { return strings.ContainsRune(set, r) }
		}
		return trim(s, drop), nil
	}
}

var errSeparator = errors.New("empty separator")

// splitMethod makes split and rsplit. Without a separator, white space separates, also several characters of it.
func splitMethod(fromRight bool) methodOf[string] {
	index, indexSpace, trimSpace := strings.Index, strings.IndexFunc, strings.TrimLeftFunc
	if fromRight {
		index, indexSpace, trimSpace = strings.LastIndex, strings.LastIndexFunc, strings.TrimRightFunc
	}
	return func(r *renderer, s string, args arguments) (any, error) {
		limit, ok := integer(args.at(1, "maxsplit", int64(-1)))
		if !ok {
			return nil, fmt.Errorf("maxsplit is not an integer")
		}
		find := func() (at, size int) {
			s = trimSpace(s, isSpace)
			at = indexSpace(s, isSpace)
			_, size = utf8.DecodeRuneInString(s[max(at, 0):])
			return at, size
		}
		spaces := args.at(0, "sep", nil) == nil
		if !spaces {
			sep, err := args.text(0, "sep")
			if err != nil || sep == "" {
				return nil, cmp.Or(err, errSeparator)
			}
			find = func() (at, size int) { return index(s, sep), len(sep) }
		}
		parts := []any{}
		for {
			at, size := find()
			if limit == 0 || at < 0 {
				break
			}
			limit--
			if fromRight {
				parts, s = append(parts, s[at+size:]), s[:at]
			} else {
				parts, s = append(parts, s[:at]), s[at+size:]
			}
		}
		if s != "" || !spaces {
			parts = append(parts, s)
		}
		if fromRight {
			slices.Reverse(parts)
		}
		return parts, r.spend(32 * len(parts))
	}
}

// lines implements splitlines.
func (r *renderer) lines(s string, args arguments) (any, error) {
	parts := []any{}
	for _, line := range splitLines(s, truth(args.at(0, "keepends", false))) {
		parts = append(parts, line)
	}
	return parts, r.spend(32 * len(parts))
}

// splitLines returns the lines of a text as Python defines them, with or without their ends.
func splitLines(s string, keepEnds bool) (parts []string) {
	for s != "" {
		i := strings.IndexFunc(s, isLineEnd)
		if i < 0 {
			return append(parts, s)
		}
		_, n := utf8.DecodeRuneInString(s[i:])
		if strings.HasPrefix(s[i:], "\r\n") {
			n = 2
		}
		end := i
		if keepEnds {
			end += n
		}
		parts, s = append(parts, s[:end]), s[i+n:]
	}
	return parts
}

func isLineEnd(r rune) bool {
	return r >= '\n' && r <= '\r' || r >= 0x1c && r <= 0x1e || r == 0x85 || r == 0x2028 || r == 0x2029
}

func affixMethod(has func(s, affix string) bool) methodOf[string] {
	return func(r *renderer, s string, args arguments) (any, error) {
		affixes, ok := args.at(0, "", nil).(ordered.Tuple)
		if !ok {
			affix, err := args.text(0, "prefix")
			return has(s, affix), err
		}
		for _, v := range affixes {
			affix, ok := text(v)
			if !ok {
				return nil, fmt.Errorf("a tuple of %s", typeName(v))
			}
			if has(s, affix) {
				return true, nil
			}
		}
		return false, nil
	}
}

// ofArgument makes a method from a function of the string and its one argument.
func ofArgument(name string, f func(s, argument string) any) methodOf[string] {
	return func(r *renderer, s string, args arguments) (any, error) {
		argument, err := args.text(0, name)
		return f(s, argument), err
	}
}

func (r *renderer) replace(s string, args arguments) (any, error) {
	from, err := args.text(0, "old")
	if err != nil {
		return nil, err
	}
	to, err := args.text(1, "new")
	if err != nil {
		return nil, err
	}
	limit := int64(-1)
	if v := args.at(2, "count", nil); v != nil {
		n, ok := integer(v)
		if !ok {
			return nil, fmt.Errorf("count is not an integer")
		}
		limit = n
	}
	n := strings.Count(s, from)
	if err := r.spendTimes(len(to), int64(n)); err != nil {
		return nil, err
	}
	return strings.Replace(s, from, to, int(min(limit, int64(n)))), nil
}

func joinMethod(r *renderer, s string, args arguments) (any, error) {
	items, err := r.iterate(args.at(0, "iterable", nil))
	if err != nil {
		return nil, err
	}
	parts := make([]string, len(items))
	for i, v := range items {
		part, ok := text(v)
		if !ok {
			return nil, fmt.Errorf("sequence item %d: expected str instance, %s found", i, typeName(v))
		}
		parts[i] = part
	}
	return r.joinTexts(parts, s)
}

func (r *renderer) joinTexts(parts []string, sep string) (any, error) {
	size := len(sep) * len(parts)
	for _, p := range parts {
		size += len(p)
	}
	if err := r.spend(size); err != nil {
		return nil, err
	}
	return strings.Join(parts, sep), nil
}

// findMethod returns the index in characters, not bytes.
func findMethod(index func(s, sep string) int, must bool) methodOf[string] {
	return func(r *renderer, s string, args arguments) (any, error) {
		sub, err := args.text(0, "sub")
		if err != nil {
			return nil, err
		}
		switch i := index(s, sub); {
		case i >= 0:
			return int64(utf8.RuneCountInString(s[:i])), nil
		case must:
			return nil, fmt.Errorf("substring not found")
		}
		return int64(-1), nil
	}
}

func partitionMethod(index func(s, sep string) int) methodOf[string] {
	return func(r *renderer, s string, args arguments) (any, error) {
		sep, err := args.text(0, "sep")
		if err != nil || sep == "" {
			return nil, cmp.Or(err, errSeparator)
		}
		i := index(s, sep)
		switch {
		case i >= 0:
			return ordered.Tuple{s[:i], sep, s[i+len(sep):]}, nil
		case index("ab", "") == 0: // from the left
			return ordered.Tuple{s, "", ""}, nil
		}
		return ordered.Tuple{"", "", s}, nil
	}
}

func everyMethod(holds func(rune) bool) methodOf[string] {
	return func(r *renderer, s string, args arguments) (any, error) {
		return s != "" && strings.IndexFunc(s, func(c rune) bool { return !holds(c) }) < 0, args.count(0, 0)
	}
}

func caseMethod(want, not func(rune) bool) methodOf[string] {
	return func(r *renderer, s string, args arguments) (any, error) {
		return hasCase(s, want, not), args.count(0, 0)
	}
}

// upper and lower follow Unicode's rules for texts, as Python does: ß becomes SS, and Σ at the end of a word ς.
func upper(s string) string { return cases.Upper(language.Und).String(s) }

func lower(s string) string {
	out := make([]byte, 2*len(s)) // the whole text at once: Caser.String forgets every 128 bytes that a word has begun
	n, _, _ := cases.Lower(language.Und).Transform(out, []byte(s), true)
	return string(out[:n])
}

func capitalize(s string) string {
	r, n := utf8.DecodeRuneInString(s)
	if n == 0 {
		return s
	}
	return string(unicode.ToTitle(r)) + strings.TrimPrefix(lower(s), lower(s[:n]))
}

func title(s string) string {
	var out strings.Builder
	inWord := false
	for _, r := range s {
		cased := unicode.IsLetter(r)
		if cased && !inWord {
			out.WriteRune(unicode.ToTitle(r))
		} else {
			out.WriteRune(unicode.ToLower(r))
		}
		inWord = cased
	}
	return out.String()
}

func swapCase(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsUpper(r) {
			return unicode.ToLower(r)
		}
		return unicode.ToUpper(r)
	}, s)
}
