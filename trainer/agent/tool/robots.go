package tool

import (
	"bufio"
	"bytes"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/internal/textfile"
)

// maxRobots bounds the bytes of a robots.txt that are read; the rest says nothing (RFC 9309, section 2.5).
const maxRobots = 512 << 10

// robots are the rules of a robots.txt for one crawler (RFC 9309).
type robots []robotsRule

type robotsRule struct {
	pattern string // of path and query, normalised; * is any text, $ at the end the end
	allow   bool
}

// parseRobots reads the rules for the crawler with a product token: those of all groups that name it, else of those for *.
func parseRobots(text []byte, product string) robots {
	var own, others robots
	var named, fitsOwn, fitsAll, inRules bool
	lines := bufio.NewScanner(bytes.NewReader(textfile.Bytes(text)))
	lines.Buffer(nil, maxRobots+1)
	lines.Split(splitRobots)
	for lines.Scan() {
		line, _, _ := strings.Cut(lines.Text(), "#")
		key, value, found := strings.Cut(line, ":")
		if !found {
			continue
		}
		value = strings.TrimSpace(value)
		switch key = strings.ToLower(strings.TrimSpace(key)); key {
		case "user-agent":
			if inRules { // another group begins
				fitsOwn, fitsAll, inRules = false, false, false
			}
			name, _, _ := strings.Cut(value, "/")
			fitsOwn = fitsOwn || strings.EqualFold(strings.TrimSpace(name), product)
			fitsAll = fitsAll || value == "*"
			named = named || fitsOwn
		case "allow", "disallow":
			inRules = true
			if value == "" {
				continue
			}
			rule := robotsRule{normalPattern(value), key == "allow"}
			if fitsOwn {
				own = append(own, rule)
			}
			if fitsAll {
				others = append(others, rule)
			}
		}
	}
	if named {
		return own
	}
	return others
}

// splitRobots splits at any of the three ends of lines that the standard knows: LF, CR and CRLF.
func splitRobots(data []byte, atEOF bool) (advance int, token []byte, err error) {
	if i := bytes.IndexAny(data, "\r\n"); i >= 0 {
		return i + 1, data[:i], nil
	}
	if atEOF && len(data) > 0 {
		return len(data), data, nil
	}
	return 0, nil, nil
}

// allows says whether path, with its query, may be fetched: the longest pattern that fits it decides, of equally long ones
// one that allows.
func (r robots) allows(path string) bool {
	path = normalPath(path)
	longest, allowed := -1, true
	for _, rule := range r {
		if n := len(rule.pattern); n < longest || n == longest && allowed || !rule.fits(path) {
			continue
		}
		longest, allowed = len(rule.pattern), rule.allow
	}
	return allowed
}

// fits says whether the pattern fits the beginning of path, or with $ all of it. It takes time linear in both.
func (r robotsRule) fits(path string) bool {
	pattern, whole := strings.CutSuffix(r.pattern, "$")
	parts := strings.Split(pattern, "*")
	rest, ok := strings.CutPrefix(path, parts[0])
	if !ok {
		return false
	}
	for i, part := range parts[1:] {
		if whole && i == len(parts)-2 { // the last part stands at the end
			return strings.HasSuffix(rest, part)
		}
		at := strings.Index(rest, part)
		if at < 0 {
			return false
		}
		rest = rest[at+len(part):]
	}
	return !whole || rest == ""
}

// normalPattern is normalPath of a rule: * and a $ at its end keep their meaning.
func normalPattern(pattern string) string {
	pattern, whole := strings.CutSuffix(pattern, "$")
	parts := strings.Split(pattern, "*")
	for i, part := range parts {
		parts[i] = normalPath(part)
	}
	pattern = strings.Join(parts, "*")
	if whole {
		pattern += "$"
	}
	return pattern
}

// normalPath writes octets of a path and query that need it as %XX, reserved ones too but for those that part it, and those that need
// it not as themselves (RFC 9309, section 2.2.2), so that two ways to write a path compare equal.
func normalPath(path string) string {
	const hex = "0123456789ABCDEF"
	var b strings.Builder
	for i := 0; i < len(path); i++ {
		c := path[i]
		escaped := false
		if c == '%' && i+2 < len(path) {
			if hi, lo := unhex(path[i+1]), unhex(path[i+2]); hi >= 0 && lo >= 0 {
				c, escaped, i = byte(hi<<4|lo), true, i+2
			}
		}
		unreserved := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("-._~", c) >= 0
		if escaped && !unreserved || !escaped && !unreserved && strings.IndexByte("/?&=%", c) < 0 {
			b.Write([]byte{'%', hex[c>>4], hex[c&15]})
			continue
		}
		b.WriteByte(c)
	}
	return b.String()
}

func unhex(c byte) int {
	switch {
	case c >= '0' && c <= '9':
		return int(c - '0')
	case c >= 'a' && c <= 'f':
		return int(c-'a') + 10
	case c >= 'A' && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}
