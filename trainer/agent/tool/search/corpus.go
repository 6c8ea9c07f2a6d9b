// Package search finds passages, in a local corpus or through a retrieval service.
//
// This package is private and changes without notice; docs/library.md lists the public ones.
package search

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"

	"github.com/blevesearch/bleve/v2"
	"github.com/blevesearch/bleve/v2/index/scorch"
	"github.com/blevesearch/bleve/v2/mapping"
	"github.com/blevesearch/bleve/v2/search"

	"github.com/mgrpo/mgrpo/trainer/agent/tool"
)

const (
	maxQuery   = 1000 // largest number of bytes of a query that are used
	titleBoost = 2.0
	indexBatch = 500 // passages
)

// CorpusOptions configures a search over a local corpus.
type CorpusOptions struct {
	Corpus  string // a JSONL file of {"title", "text"} or a folder of Markdown files
	Results int    // passages in one answer

	// Index is the folder that stores the corpus's index; "": the index is made in memory each time. The index is built
	// once and read by any number of processes. Its name is a digest of the corpus, so another corpus has another
	// index.
	Index string
	Note  func(text string) // receives progress messages if building the index takes long; may be nil
}

// Corpus finds the passages of a corpus that best match a query (TF-IDF, titles count double). If no passage contains
// one of the query's words unchanged, stop words and other forms of the words count, too.
type Corpus struct {
	tool.Tool
	index   bleve.Index
	results int
}

// NewCorpus opens the index, or builds it. The caller must call Close.
func NewCorpus(ctx context.Context, cfg CorpusOptions) (*Corpus, error) {
	if cfg.Results < 1 {
		return nil, fmt.Errorf("search: %d results; there must be at least 1", cfg.Results)
	}
	if cfg.Note == nil {
		cfg.Note = func(string) {}
	}
	var index bleve.Index
	var err error
	if cfg.Index != "" {
		index, err = indexOnDisk{cfg.Corpus, cfg.Index, cfg.Note}.open(ctx)
	} else {
		index, err = indexInMemory(ctx, cfg.Corpus)
	}
	if err != nil {
		return nil, fmt.Errorf("search: corpus %s: %w", cfg.Corpus, err)
	}
	s := &Corpus{index: index, results: cfg.Results}
	s.Tool = tool.Func("search", "Searches the documents at hand and returns the passages that fit best.", "query",
		"A few words that the wanted passage contains.", s.search)
	return s, nil
}

// Close releases the index.
func (s *Corpus) Close() error { return s.index.Close() }

// Fields of a passage in the index. Loose fields repeat the text under the other analyzer and are not stored.
const (
	titleField = "title"
	textField  = "text"
	looseField = "_loose" // follows the name of a field
)

func passageMapping() mapping.IndexMapping {
	passage := bleve.NewDocumentStaticMapping()
	for _, name := range []string{titleField, textField} {
		exact := bleve.NewTextFieldMapping()
		exact.Analyzer = wordsAnalyzer
		exact.IncludeTermVectors = false
		exact.IncludeInAll = false
		loose := *exact
		loose.Name = name + looseField
		loose.Analyzer = looseAnalyzer
		loose.Store = false
		loose.DocValues = false
		passage.AddFieldMappingsAt(name, exact, &loose)
	}
	m := bleve.NewIndexMapping()
	m.DefaultMapping = passage
	m.DefaultAnalyzer = wordsAnalyzer
	return m
}

// indexInMemory builds the index of a corpus in memory.
func indexInMemory(ctx context.Context, corpus string) (bleve.Index, error) {
	index, err := bleve.NewUsing("", passageMapping(), scorch.Name, scorch.Name, nil)
	if err != nil {
		return nil, err
	}
	batch := index.NewBatch()
	flush := func() error {
		if err := ctx.Err(); err != nil {
			return err
		}
		err := index.Batch(batch)
		batch = index.NewBatch()
		return err
	}
	err = eachPassage(corpus, func(id string, passage map[string]any) error {
		if err := batch.Index(id, passage); err != nil {
			return err
		}
		if batch.Size() < indexBatch {
			return nil
		}
		return flush()
	})
	if err == nil {
		err = flush()
	}
	if err != nil {
		return nil, errors.Join(err, index.Close())
	}
	return index, nil
}

// eachPassage calls visit for every passage of a corpus, in the form that is indexed.
func eachPassage(corpus string, visit func(id string, passage map[string]any) error) error {
	return readCorpus(corpus, func(d document) error {
		for i, p := range passages(d.text) {
			if err := visit(fmt.Sprintf("%s#%d", d.id, i), map[string]any{"title": d.title, "text": p}); err != nil {
				return err
			}
		}
		return nil
	})
}

// search matches only words. In a query language, a model could write queries that never end.
func (s *Corpus) search(ctx context.Context, query string) (string, error) {
	query, err := bounded(query)
	if err != nil {
		return "", err
	}
	// The files of an index are memory-mapped. If another process has truncated one, reading it faults. The fault
	// becomes a failure of the call.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	result, err := s.match(ctx, query, "", wordsAnalyzer)
	if err == nil && len(result.Hits) == 0 {
		result, err = s.match(ctx, query, looseField, looseAnalyzer)
	}
	if err != nil {
		return "", err
	}
	if len(result.Hits) == 0 {
		return "nothing found", nil
	}
	var b strings.Builder
	for i, hit := range result.Hits {
		title, _ := hit.Fields["title"].(string)
		passage, _ := hit.Fields["text"].(string)
		fmt.Fprintf(&b, "[%d] %s\n%s\n\n", i+1, title, passage)
	}
	return strings.TrimSpace(b.String()), nil
}

// match returns the passages that contain terms of the query in the fields whose names have the suffix.
func (s *Corpus) match(ctx context.Context, query, suffix, analyzer string) (*bleve.SearchResult, error) {
	text := bleve.NewMatchQuery(query)
	text.SetField(textField + suffix)
	text.Analyzer = analyzer
	title := bleve.NewMatchQuery(query)
	title.SetField(titleField + suffix)
	title.SetBoost(titleBoost)
	title.Analyzer = analyzer
	request := bleve.NewSearchRequestOptions(bleve.NewDisjunctionQuery(title, text), s.results, 0, false)
	request.Fields = []string{titleField, textField}
	request.SortByCustom(search.SortOrder{&byScore{descending: true}, &search.SortDocID{}})
	return s.index.SearchInContext(ctx, request)
}

// bounded returns the part of a query that is used.
func bounded(query string) (string, error) {
	query = strings.ToValidUTF8(query[:min(len(query), maxQuery)], "")
	if strings.TrimSpace(query) == "" {
		return "", errors.New("the query is empty")
	}
	return query, nil
}
