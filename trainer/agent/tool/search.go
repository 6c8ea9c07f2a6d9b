package tool

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/blevesearch/bleve/v2"
	"github.com/blevesearch/bleve/v2/analysis/analyzer/standard"
	"github.com/blevesearch/bleve/v2/index/scorch"
	"github.com/blevesearch/bleve/v2/mapping"
)

const (
	maxQuery   = 1000 // bytes of a query that are used
	titleBoost = 2.0
	indexBatch = 500 // passages
)

// SearchConfig configures a Search over a local corpus.
type SearchConfig struct {
	Corpus  string // a JSONL file of {"title", "text"} or a folder of Markdown files
	Results int    // passages in one answer
}

// Search finds the passages of a corpus that match a query best (TF-IDF, titles count double).
type Search struct {
	Tool
	index   bleve.Index
	results int
}

// NewSearch builds the index in memory. The caller must call Close.
func NewSearch(ctx context.Context, cfg SearchConfig) (*Search, error) {
	if cfg.Results < 1 {
		return nil, fmt.Errorf("search: %d results: want at least 1", cfg.Results)
	}
	index, err := bleve.NewUsing("", passageMapping(), scorch.Name, scorch.Name, nil)
	if err != nil {
		return nil, fmt.Errorf("search: %w", err)
	}
	if err := fill(ctx, index, cfg.Corpus); err != nil {
		return nil, fmt.Errorf("search: corpus %s: %w", cfg.Corpus, errors.Join(err, index.Close()))
	}
	s := &Search{index: index, results: cfg.Results}
	s.Tool = Func("search", "Searches the documents at hand and returns the passages that fit best.", "query",
		"A few words that the wanted passage contains.", s.search)
	return s, nil
}

// Close releases the index.
func (s *Search) Close() error { return s.index.Close() }

func passageMapping() mapping.IndexMapping {
	text := bleve.NewTextFieldMapping()
	text.Analyzer = standard.Name
	text.IncludeTermVectors = false
	text.IncludeInAll = false
	passage := bleve.NewDocumentStaticMapping()
	passage.AddFieldMappingsAt("title", text)
	passage.AddFieldMappingsAt("text", text)
	m := bleve.NewIndexMapping()
	m.DefaultMapping = passage
	m.DefaultAnalyzer = standard.Name
	return m
}

// fill indexes every passage of a corpus.
func fill(ctx context.Context, index bleve.Index, corpus string) error {
	batch := index.NewBatch()
	flush := func() error {
		if err := ctx.Err(); err != nil {
			return err
		}
		err := index.Batch(batch)
		batch = index.NewBatch()
		return err
	}
	err := readCorpus(corpus, func(d document) error {
		for i, p := range passages(d.text) {
			id := fmt.Sprintf("%s#%d", d.id, i)
			if err := batch.Index(id, map[string]any{"title": d.title, "text": p}); err != nil {
				return err
			}
			if batch.Size() >= indexBatch {
				if err := flush(); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return flush()
}

// search matches words only: with a query language a model could write queries that never end.
func (s *Search) search(ctx context.Context, query string) (string, error) {
	query, err := bounded(query)
	if err != nil {
		return "", err
	}
	text := bleve.NewMatchQuery(query)
	text.SetField("text")
	title := bleve.NewMatchQuery(query)
	title.SetField("title")
	title.SetBoost(titleBoost)
	request := bleve.NewSearchRequestOptions(bleve.NewDisjunctionQuery(title, text), s.results, 0, false)
	request.Fields = []string{"title", "text"}
	request.SortBy([]string{"-_score", "_id"}) // equal scores are ordered by id
	result, err := s.index.SearchInContext(ctx, request)
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

// bounded returns the bytes of a query that are used.
func bounded(query string) (string, error) {
	query = strings.ToValidUTF8(query[:min(len(query), maxQuery)], "")
	if strings.TrimSpace(query) == "" {
		return "", errors.New("the query is empty")
	}
	return query, nil
}
