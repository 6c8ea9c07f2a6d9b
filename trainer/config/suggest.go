package config

import "strings"

// suggestKey returns the end of the message about an unknown key: the kinds of tools that have it, or the nearest key of
// the section, or the same key elsewhere, or all keys of the section.
func suggestKey(word, section string, valid []string) string {
	if kinds := kindNames(word); strings.HasPrefix(section, "tools.") && len(kinds) > 0 {
		return "only a tool of kind " + strings.Join(kinds, " or ") + " has it"
	}
	if c := nearest(word, valid); c != "" {
		return "did you mean " + c + "?"
	}
	for _, path := range schemaKeys() {
		if strings.HasSuffix(path, "."+word) {
			return "did you mean " + path + "?"
		}
	}
	if section == "" {
		return "sections are " + strings.Join(valid, ", ")
	}
	return "valid are " + strings.Join(valid, ", ")
}

// nearest returns the candidate that word probably misspells. It is one edit away, two for words of
// at least eight letters, and three for words of at least twelve (query_per_step, queries_per_step).
// It has a letter in common with word. It returns "" if there is no such candidate.
func nearest(word string, candidates []string) string {
	best, bestDist := "", 2
	switch {
	case len(word) >= 12:
		bestDist = 4
	case len(word) >= 8:
		bestDist = 3
	}
	for _, c := range candidates {
		if d := editDistance(word, c); d < min(bestDist, len(word), len(c)) {
			best, bestDist = c, d
		}
	}
	return best
}

// editDistance returns the number of single-byte insertions, deletions, replacements and swaps of neighbours that turn
// a into b (optimal string alignment).
func editDistance(a, b string) int {
	prev2, prev, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(prev[j]+1, row[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], prev2[j-2]+1)
			}
		}
		prev2, prev, row = prev, row, prev2
	}
	return prev[len(b)]
}

// didYouMean returns the end of a message about word, with the nearest candidate or with all candidates.
func didYouMean(word string, candidates []string) string {
	if c := nearest(word, candidates); c != "" {
		return "did you mean " + c + "?"
	}
	if len(candidates) == 0 {
		return "there are none"
	}
	return "valid are " + strings.Join(candidates, ", ")
}
