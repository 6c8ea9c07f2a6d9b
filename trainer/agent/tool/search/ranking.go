package search

import (
	"fmt"
	"math"

	"github.com/blevesearch/bleve/v2/search"
)

// byScore orders passages by score, and passages with equal scores by id. Scores are compared as float32.
// The last bits of bleve's float64 scores depend on the order of its additions, and so on a passage's place in an
// index. With float64, two indexes of one corpus would order equally good passages differently.
type byScore struct{ descending bool }

// Value returns the score as a text that sorts in the same order; scores are positive.
func (s *byScore) Value(hit *search.DocumentMatch) string {
	return fmt.Sprintf("%08x", math.Float32bits(float32(hit.Score)))
}

func (s *byScore) DecodeValue(value string) string      { return value }
func (s *byScore) Descending() bool                     { return s.descending }
func (s *byScore) Reverse()                             { s.descending = !s.descending }
func (s *byScore) Copy() search.SearchSort              { c := *s; return &c }
func (s *byScore) UpdateVisitor(field string, _ []byte) {}
func (s *byScore) RequiresDocID() bool                  { return false }
func (s *byScore) RequiresFields() []string             { return nil }

// RequiresScoring returns false. If it returned true, bleve would compare the scores themselves instead of Value.
func (s *byScore) RequiresScoring() bool { return false }
