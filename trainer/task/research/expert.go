package research

import (
	"slices"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/task"
)

// Noise makes the scripted experts sloppy. Each field is the probability of a mistake.
type Noise struct {
	OneWord       float64 // search for only one of the two words
	Outdated      float64 // quote the outdated fact ("was") although the current one ("is") was found too
	RandomQuote   float64 // quote any returned sentence
	GiveUp        float64 // do not follow an alias
	WrongRelation float64 // ask for another relation of the query
	StopEarly     float64 // answer before the last hop
	AskAgain      float64 // ask again after "unknown"
}

// searchAgain is the probability that a search is repeated with both words. This applies to a search for one word that
// found no answer and, if searches can fail, to a search without results.
const searchAgain = 0.7

func (n Noise) validate() error {
	return checkProbabilities(map[string]float64{"keyword": n.OneWord, "was": n.Outdated, "random": n.RandomQuote,
		"give_up": n.GiveUp, "wrong_relation": n.WrongRelation, "early": n.StopEarly, "reask": n.AskAgain})
}

// expert plays the scripted planner and researcher on one knowledge base.
type expert struct {
	kb       *KB
	noise    Noise
	failures float64 // probability that a search finds nothing
	s        *task.Stream
}

func (e *expert) limits() limits { return limitsOf(e.kb.FanOut) }

// plan returns the planner's answer. ask returns the last word of the answer to a sub-question, and false if the
// planner may not ask again.
func (e *expert) plan(ask func(entity, relation string) (string, bool)) string {
	if e.kb.FanOut {
		return strings.Join(e.planParts(ask), " ")
	}
	return e.planChain(ask)
}

// planParts asks for one part after another and returns the answers that it gets.
func (e *expert) planParts(ask func(entity, relation string) (string, bool)) (answers []string) {
	asked := 0
	for part := range e.kb.Relations {
		if part > 0 && e.s.Chance(e.noise.StopEarly) {
			break
		}
		relation := e.relation(part)
		found := Unknown
		for again := true; again && found == Unknown && asked < e.limits().calls; asked++ {
			name, ok := ask(e.kb.Starts[part], relation)
			if !ok {
				break
			}
			found, again = name, name == Unknown && e.s.Chance(e.noise.AskAgain)
		}
		answers = append(answers, found)
	}
	return answers
}

// relation returns the relation that the planner asks for: the relation of the hop or, with probability
// noise.WrongRelation, any relation of the query.
func (e *expert) relation(hop int) string {
	if e.s.Chance(e.noise.WrongRelation) {
		return e.kb.Relations[e.s.IntN(len(e.kb.Relations))]
	}
	return e.kb.Relations[hop]
}

// planChain follows the chain hop by hop.
func (e *expert) planChain(ask func(entity, relation string) (string, bool)) string {
	known := e.kb.Starts[0]
	for hop, asked := 0, 0; hop < len(e.kb.Relations); asked++ {
		if asked > 0 && e.s.Chance(e.noise.StopEarly) {
			break
		}
		relation := e.relation(hop)
		found, ok := "", asked < e.limits().calls
		if ok {
			found, ok = ask(known, relation)
		}
		if !ok || (found == Unknown && !e.s.Chance(e.noise.AskAgain)) {
			break
		}
		if found != Unknown {
			known = found
			hop++
		}
	}
	return known
}

// research looks up one sub-question with at most limit searches. It returns the words of the quoted fact, or
// "unknown". search returns the facts found for words.
func (e *expert) research(entity, relation string, limit int, search func(words []string) []Fact) []string {
	words := []string{entity, relation}
	if e.s.Chance(e.noise.OneWord) {
		words = words[e.s.IntN(2):][:1]
	}
	for range limit {
		found := search(words)
		if len(found) > 0 && e.s.Chance(e.noise.RandomQuote) {
			return found[e.s.IntN(len(found))].Words()
		}
		if quote, ok := e.quote(found, entity, relation); ok {
			return quote.Words()
		}
		other, aliased := aliasOf(found, entity)
		switch {
		case aliased && !e.s.Chance(e.noise.GiveUp):
			entity = other
		case (len(words) == 1 || e.failures > 0 && len(found) == 0) && e.s.Chance(searchAgain):
		default:
			return []string{Unknown}
		}
		words = []string{entity, relation}
	}
	return []string{Unknown}
}

// quote returns the fact that answers the question or, with probability noise.Outdated, its outdated twin.
func (e *expert) quote(found []Fact, entity, relation string) (Fact, bool) {
	var matches []Fact
	for _, f := range found {
		if f.Subject == entity && f.Relation == relation {
			matches = append(matches, f)
		}
	}
	switch len(matches) {
	case 0:
		return Fact{}, false
	case 1:
		return matches[0], true
	}
	current := !e.s.Chance(e.noise.Outdated)
	i := slices.IndexFunc(matches, func(f Fact) bool { return f.Current == current })
	return matches[i], true
}

func aliasOf(found []Fact, entity string) (string, bool) {
	for _, f := range found {
		if f.Subject == entity && f.Relation == alias {
			return f.Value, true
		}
	}
	return "", false
}

// transcript collects the segments of one conversation.
type transcript struct {
	task.Demonstration
	grammar *Grammar
}

func newTranscript(role Role, query, question string) *transcript {
	t := &transcript{Demonstration: task.Demonstration{Query: query, Agent: string(role), Verbatim: true}, grammar: &Grammar{role: role}}
	t.add("user", t.grammar.Prompt(question), false)
	return t
}

func (t *transcript) add(role string, words []string, sampled bool) {
	t.Segments = append(t.Segments, task.Segment{Role: role, Text: strings.Join(words, " "), Sampled: sampled})
}

// say adds a turn "<tag> body </tag>".
func (t *transcript) say(tag string, body ...string) {
	t.add("assistant", slices.Concat([]string{"<" + tag + ">"}, body, []string{"</" + tag + ">"}), true)
}

func (t *transcript) observe(text string) { t.add("tool", t.grammar.Observe(text), false) }

// search returns the search function of a conversation.
func (e *expert) search(t *transcript) func(words []string) []Fact {
	return func(words []string) []Fact {
		var found []Fact
		if e.failures == 0 || !e.s.Chance(e.failures) {
			found = e.kb.Search(words)
		}
		t.say("search", words...)
		t.observe(sentences(found))
		return found
	}
}
