package research

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/task"
)

// Shape sets the distribution of the knowledge bases.
type Shape struct {
	Hops     int     // largest number of hops of a question, 1 to 3; each number from 1 is equally likely
	Parts    int     // largest number of parts of a fan-out question, 1 to 6, each number equally likely; 0: questions are chains of hops
	Alias    float64 // probability that a hop's subject is stored under an alias
	Outdated float64 // probability that a hop's fact has an outdated twin
	Failures float64 // probability that a search finds nothing
}

// defaultShape returns the shape of the quickstart.
func defaultShape() Shape { return Shape{Hops: maxHops, Alias: 0.25, Outdated: 0.5} }

func (h Shape) validate() error {
	if h.Hops < 1 || h.Hops > maxHops {
		return fmt.Errorf("research: hops %d: must be from 1 to %d", h.Hops, maxHops)
	}
	if h.Parts < 0 || h.Parts > maxParts {
		return fmt.Errorf("research: parts %d: must be from 0 to %d", h.Parts, maxParts)
	}
	return checkProbabilities(map[string]float64{"alias": h.Alias, "outdated": h.Outdated, "failures": h.Failures})
}

func checkProbabilities(byKey map[string]float64) error {
	for key, p := range byKey {
		if !(p >= 0 && p <= 1) {
			return fmt.Errorf("research: %s %v: must be a probability", key, p)
		}
	}
	return nil
}

const (
	maxHops             = 3
	maxParts            = 6
	namesPerKB          = 26
	namesPerFanOut      = 4*maxParts + restNames // a start, a value, an alias and an outdated value for each part
	restNames           = 8                      // drawn names that do not belong to a hop
	distractorAttempts  = 8
	searchTop           = 3
	subjectBoost        = 0.5
	inverseCountSmooth  = 0.5
	distractorOtherRel  = 4 // of 10
	distractorOtherName = 4 // of 10
)

// Fact is one sentence: subject, relation (or "alias"), is or was, value.
type Fact struct {
	Subject, Relation, Value string
	Current                  bool // "is"; false: "was"
}

// Words returns the words of the sentence, without the full stop.
func (f Fact) Words() []string {
	verb := "was"
	if f.Current {
		verb = "is"
	}
	return []string{f.Subject, f.Relation, verb, f.Value}
}

// KB is the knowledge base of one query: hops to follow, among outdated facts and distractors. In a chain each hop
// starts from the previous value, and the last value is the answer. In a fan-out the hops are independent parts, and
// all values together are the answer.
type KB struct {
	FanOut    bool
	Starts    []string // [hops] names that the question asks about
	Relations []string // [hops]
	Values    []string // [hops] the answers
	Facts     []Fact
}

// makeKB draws a knowledge base.
func makeKB(shape Shape, s *task.Stream) KB {
	most, size := shape.Hops, namesPerKB
	if shape.Parts > 0 {
		most, size = shape.Parts, namesPerFanOut
	}
	hops := 1 + s.IntN(most)
	pool := slices.Clone(names)
	task.Shuffle(s, pool)
	pool = pool[:size]
	rest := pool[size-restNames:]
	rels := slices.Clone(relations)
	task.Shuffle(s, rels)
	kb := KB{FanOut: shape.Parts > 0, Starts: pool[:hops], Relations: rels[:hops], Values: pool[1 : hops+1]}
	if kb.FanOut {
		kb.Values = pool[hops : 2*hops]
	}
	fresh := pool[slices.Index(pool, kb.Values[hops-1])+1:]
	draw := func() (name string) { name, fresh = fresh[0], fresh[1:]; return name }
	for i, r := range kb.Relations {
		subject := kb.Starts[i]
		if s.Chance(shape.Alias) {
			other := draw()
			kb.add(Fact{subject, alias, other, true})
			subject = other
		}
		kb.add(Fact{subject, r, kb.Values[i], true})
		if s.Chance(shape.Outdated) {
			kb.add(Fact{subject, r, draw(), false})
		}
	}
	for range distractorAttempts {
		kb.add(kb.distractor(s, rest))
	}
	task.Shuffle(s, kb.Facts)
	return kb
}

// distractor draws a fact near a random hop: its subject with another relation, its relation with another subject, or
// another fact with its start as the value.
func (kb *KB) distractor(s *task.Stream, rest []string) Fact {
	pick := func(words []string) string { return words[s.IntN(len(words))] }
	hop := s.IntN(len(kb.Relations))
	start, relation := kb.Starts[hop], kb.Relations[hop]
	switch kind := s.IntN(10); {
	case kind < distractorOtherRel:
		other := pick(relations)
		for other == relation {
			other = pick(relations)
		}
		subject := kb.subject(hop)
		return Fact{subject, other, pick(rest), s.Chance(0.5)}
	case kind < distractorOtherRel+distractorOtherName:
		return Fact{pick(rest), relation, pick(rest), s.Chance(0.5)}
	default:
		return Fact{pick(rest), pick(relations), start, true}
	}
}

// add appends a fact unless there is a fact with the same subject, relation and tense.
func (kb *KB) add(f Fact) {
	if _, taken := kb.value(f.Subject, f.Relation, f.Current); !taken {
		kb.Facts = append(kb.Facts, f)
	}
}

func (kb *KB) value(subject, relation string, current bool) (string, bool) {
	for _, f := range kb.Facts {
		if f.Subject == subject && f.Relation == relation && f.Current == current {
			return f.Value, true
		}
	}
	return "", false
}

// subject returns the subject of a hop's fact: the entity's alias if it has one, otherwise its name.
func (kb *KB) subject(hop int) string {
	if other, ok := kb.value(kb.Starts[hop], alias, true); ok {
		return other
	}
	return kb.Starts[hop]
}

// Question returns the text of the query. For a chain it contains the first name and the relations to follow, for a
// fan-out each part's name and relation.
func (kb *KB) Question() string {
	var words []string
	for i, r := range kb.Relations {
		if i == 0 || kb.FanOut {
			words = append(words, kb.Starts[i])
		}
		words = append(words, r)
	}
	return strings.Join(append(words, "?"), " ")
}

// Answer returns the last name of the chain, or the names that answer the parts, in their order.
func (kb *KB) Answer() string {
	if kb.FanOut {
		return strings.Join(kb.Values, " ")
	}
	return kb.Values[len(kb.Values)-1]
}

// Score returns the score of an answer. For a chain it is 1 for the last name and otherwise 0. For a fan-out it is the
// fraction of parts whose position in the answer has the right name. Additional words count as wrong parts.
func (kb *KB) Score(answer string) float64 {
	if !kb.FanOut {
		return boolScore(strings.TrimSpace(answer) == kb.Answer())
	}
	words, right := strings.Fields(answer), 0
	for i, v := range kb.Values[:min(len(words), len(kb.Values))] {
		if words[i] == v {
			right++
		}
	}
	return float64(right) / float64(max(len(words), len(kb.Values)))
}

// Truth returns the current value of an entity's relation, or "unknown". The entity is given by name or alias.
func (kb *KB) Truth(entity, relation string) string {
	if v, ok := kb.value(entity, relation, true); ok {
		return v
	}
	if other, ok := kb.value(entity, alias, true); ok {
		if v, ok := kb.value(other, relation, true); ok {
			return v
		}
	}
	return Unknown
}

// Search returns the best three facts that share a word with the query. Rare words and subjects weigh more, as in BM25
// with a boosted subject field.
func (kb *KB) Search(words []string) []Fact {
	words = slices.Compact(slices.Sorted(slices.Values(words)))
	type hit struct {
		fact  Fact
		score float64
	}
	var hits []hit
	for _, f := range kb.Facts {
		if score := kb.score(f, words); score > 0 {
			hits = append(hits, hit{f, score})
		}
	}
	slices.SortStableFunc(hits, func(a, b hit) int { return cmp.Compare(b.score, a.score) })
	found := make([]Fact, 0, searchTop)
	for _, h := range hits[:min(len(hits), searchTop)] {
		found = append(found, h.fact)
	}
	return found
}

func (kb *KB) score(f Fact, words []string) (score float64) {
	for _, w := range words {
		if !f.mentions(w) {
			continue
		}
		count := 0
		for _, other := range kb.Facts {
			if other.mentions(w) {
				count++
			}
		}
		score += 1 + 1/(float64(count)+inverseCountSmooth)
		if w == f.Subject {
			score += subjectBoost
		}
	}
	return score
}

func (f Fact) mentions(word string) bool {
	return word == f.Subject || word == f.Relation || word == f.Value
}

// sentences returns the text of search results: each fact with a full stop.
func sentences(facts []Fact) string {
	var words []string
	for _, f := range facts {
		words = append(append(words, f.Words()...), ".")
	}
	return strings.Join(words, " ")
}
