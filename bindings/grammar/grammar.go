// Package grammar constrains sampled tokens to a grammar. It is the only Go package that calls XGrammar. Its library
// is loaded when the first vocabulary is made, so a program that does not constrain replies runs without it.
//
// This package is private and changes without notice; docs/library.md lists the public ones.
package grammar

/*
#cgo LDFLAGS: -ldl -Wl,-rpath,${SRCDIR}/../../build/lib
#include <stdlib.h>
#include "load.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"unsafe"
)

// load loads the library once.
var load = sync.OnceValue(func() error {
	text := C.load_grammar()
	if text == nil {
		return nil
	}
	defer C.free(unsafe.Pointer(text))
	return fmt.Errorf("grammar: %s: build it with make build", C.GoString(text))
})

// failure returns the error of a library function, or nil, and frees its text.
func failure(text *C.char) error {
	if text == nil {
		return nil
	}
	defer C.mgrpo_grammar_free(text)
	return errors.New(C.GoString(text))
}

// Vocabulary holds the tokens that a model may sample. It is immutable.
type Vocabulary struct {
	c     *C.mgrpo_vocabulary
	count int
}

// NewVocabulary returns the vocabulary of tokens with these bytes, in the order of their ids. A
// token without bytes is never allowed. A reply ends with one of the tokens stops.
func NewVocabulary(tokens [][]byte, stops []int32) (*Vocabulary, error) {
	if err := load(); err != nil {
		return nil, err
	}
	var text []byte
	ends := make([]C.int64_t, len(tokens))
	for i, t := range tokens {
		text = append(text, t...)
		ends[i] = C.int64_t(len(text))
	}
	if len(text) == 0 || len(stops) == 0 {
		return nil, errors.New("grammar: a vocabulary needs tokens with a text and one that ends a reply")
	}
	v := &Vocabulary{count: len(tokens)}
	err := failure(C.mgrpo_vocabulary_new((*C.char)(unsafe.Pointer(&text[0])), &ends[0], C.int32_t(len(tokens)), (*C.int32_t)(unsafe.Pointer(&stops[0])),
		C.int32_t(len(stops)), &v.c))
	if err != nil {
		return nil, fmt.Errorf("grammar: the vocabulary: %w", err)
	}
	runtime.AddCleanup(v, func(c *C.mgrpo_vocabulary) { C.mgrpo_vocabulary_delete(c) }, v.c)
	return v, nil
}

// Grammar is a compiled grammar over a vocabulary. It is immutable.
type Grammar struct {
	c     *C.mgrpo_grammar
	count int
}

// Compile returns the grammar of a structural tag of XGrammar, which is a JSON text.
func (v *Vocabulary) Compile(tag []byte) (*Grammar, error) {
	if len(tag) == 0 {
		return nil, errors.New("grammar: it is empty")
	}
	g := &Grammar{count: v.count}
	if err := failure(C.mgrpo_grammar_new(v.c, (*C.char)(unsafe.Pointer(&tag[0])), C.int64_t(len(tag)), &g.c)); err != nil {
		return nil, fmt.Errorf("grammar: %w", err)
	}
	runtime.KeepAlive(v)
	runtime.AddCleanup(g, func(c *C.mgrpo_grammar) { C.mgrpo_grammar_delete(c) }, g.c)
	return g, nil
}

// Matcher follows one reply through a grammar. Only one goroutine at a time may use it.
type Matcher struct {
	c     *C.mgrpo_matcher
	count int
}

// Matcher returns a matcher for a new reply.
func (g *Grammar) Matcher() (*Matcher, error) {
	m := &Matcher{count: g.count}
	if err := failure(C.mgrpo_matcher_new(g.c, &m.c)); err != nil {
		return nil, fmt.Errorf("grammar: %w", err)
	}
	runtime.KeepAlive(g)
	runtime.AddCleanup(m, func(c *C.mgrpo_matcher) { C.mgrpo_matcher_delete(c) }, m.c)
	return m, nil
}

// Words returns the number of 32-bit words of a mask over n tokens.
func Words(n int) int { return (n + 31) / 32 }

// Allowed sets bit id%32 of mask[id/32] for each token that may come next and clears the others. mask has Words of the vocabulary's size.
func (m *Matcher) Allowed(mask []int32) error {
	if len(mask) != Words(m.count) {
		return fmt.Errorf("grammar: a mask of %d words; want %d", len(mask), Words(m.count))
	}
	err := failure(C.mgrpo_matcher_allowed(m.c, (*C.int32_t)(unsafe.Pointer(&mask[0]))))
	runtime.KeepAlive(m)
	return err
}

// Accept advances by one token. It returns an error if the token was not allowed.
func (m *Matcher) Accept(token int32) error {
	var ok C.int32_t
	err := failure(C.mgrpo_matcher_accept(m.c, C.int32_t(token), &ok))
	runtime.KeepAlive(m)
	if err == nil && ok == 0 {
		err = fmt.Errorf("grammar: token %d is not allowed here", token)
	}
	return err
}
