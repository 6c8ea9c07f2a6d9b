package tool

import (
	"fmt"
	"math"

	"github.com/blevesearch/bleve/v2/search"
)

// ranking orders passages by their scores, the best first, and equally good ones by id. Scores count as float32: the last bits
// of bleve's float64 depend on the order in which it adds, and so on where a passage happens to lie in an index. Two indexes
// of one corpus would order equally good passages differently.
func ranking() search.SearchSort { return &byScore{descending: true} }

type byScore struct{ descending bool }

// Value is the score as a text that sorts like it; scores are positive.
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

// RequiresScoring is false: where it is true, bleve compares the scores themselves in place of Value.
func (s *byScore) RequiresScoring() bool { return false }
