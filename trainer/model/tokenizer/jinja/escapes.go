package jinja

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

var escapes = map[byte]string{'n': "\n", 't': "\t", 'r': "\r", 'a': "\a", 'b': "\b", 'f': "\f", 'v': "\v",
	'\\': `\`, '\'': "'", '"': `"`, '\n': ""}

var hexEscapes = map[byte]int{'x': 2, 'u': 4, 'U': 8}

// unescape decodes Python's string escapes. Unknown escapes stay unchanged.
func unescape(s string) (string, error) {
	if !strings.Contains(s, `\`) {
		return s, nil
	}
	var out strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' {
			out.WriteByte(s[i])
			continue
		}
		i++
		c := s[i]
		known, ok := escapes[c]
		switch {
		case ok:
			out.WriteString(known)
		case hexEscapes[c] > 0:
			n := hexEscapes[c]
			if i+n >= len(s) {
				return "", fmt.Errorf(`the escape \%c is cut short`, c)
			}
			v, err := strconv.ParseUint(s[i+1:i+1+n], 16, 32)
			if err != nil || !utf8.ValidRune(rune(v)) {
				return "", fmt.Errorf(`\%s is not a character`, s[i:i+1+n])
			}
			out.WriteRune(rune(v))
			i += n
		case c >= '0' && c <= '7':
			n := 1
			for n < 3 && i+n < len(s) && s[i+n] >= '0' && s[i+n] <= '7' {
				n++
			}
			v, _ := strconv.ParseUint(s[i:i+n], 8, 16)
			out.WriteRune(rune(v))
			i += n - 1
		case c == 'N':
			return "", fmt.Errorf(`escapes by name, \N, are not supported`)
		default:
			out.WriteByte('\\')
			out.WriteByte(c)
		}
	}
	return out.String(), nil
}
