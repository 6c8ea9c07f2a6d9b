package research

import (
	"slices"
	"strings"
)

// Unknown is the answer to a question without an answer.
const (
	Unknown = "unknown"
	alias   = "alias"
)

const (
	specials = "<pad> ? . is was unknown alias <call> </call> <resp> </resp> <search> </search> <docs> </docs> <result> </result> <answer> " +
		"</answer> <note> </note>"
	relationWords = "boss friend mentor rival tutor doctor lawyer neighbour"
	nameWords     = "Ada Abel Alma Amos Anya Bela Bert Bo Cara Cleo Cora Dag Dina Drew Edda Egon Elsa Emil Enzo Erna Ezra " +
		"Faye Finn Flora Gaia Gil Greta Gwen Hal Hana Hugo Ida Igor Inga Ivo Jana Jens Jo Kai Kira Kurt Lara " +
		"Leif Lena Lior Liv Lotte Luca Mads Maja Milo Mina Nell Nico Nils Noor Odin Olga Oren Otto Pia Piet Quin " +
		"Rafa Remy Rhea Rolf Rosa Ruth Sami Selma Sven Tara Tove Udo Uma Vera Vito Wim Xena Yara Yves Zara Zeno"
)

var (
	relations = strings.Fields(relationWords)
	names     = strings.Fields(nameWords)
	// vocabulary holds the words in the order of their ids; id 0 is padding.
	vocabulary = slices.Concat(strings.Fields(specials), relations, names)

	isRelation = wordSet(relations)
	isName     = wordSet(names)
)

func wordSet(words []string) map[string]bool {
	m := make(map[string]bool, len(words))
	for _, w := range words {
		m[w] = true
	}
	return m
}
