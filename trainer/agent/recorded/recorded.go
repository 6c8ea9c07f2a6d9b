// Package recorded keeps what outside services answer, so that a run can be repeated without them: a page, a judge's reply,
// what a tool of somebody else said. Any number of processes may use one folder at once.
package recorded

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/mgrpo/mgrpo/trainer/internal/strictjson"
	"github.com/mgrpo/mgrpo/trainer/team/durable"
)

const (
	format    = 1
	maxEntry  = 64 << 20 // bytes of an entry's file
	maxQuoted = 300      // bytes of a question in an error
)

// Question is what a service is asked. Equal questions have equal answers.
type Question struct {
	Service string // the service, with all settings on which its answers depend
	Text    string
}

// Answer is what came back: a text, or an error of the service, which is kept like any other answer because whoever asked
// saw it.
type Answer struct {
	Text  string
	Error string // "": there was none
	Kind  string // of the error, as who asks calls it
}

// Cache is a folder of answers. A nil Cache keeps nothing.
type Cache struct {
	dir    string
	replay bool

	mu     sync.Mutex
	asking map[string]chan struct{} // by file; closed when the answer is there, or will not come
}

// Open opens a folder. With replay it must exist, and nothing is ever asked.
func Open(dir string, replay bool) (*Cache, error) {
	if replay {
		if info, err := os.Stat(dir); err != nil || !info.IsDir() {
			return nil, fmt.Errorf("the cache %s is no folder; record a run first, with cache.mode: record", dir)
		}
	} else if err := durable.MkdirAll(durable.OS{}, dir); err != nil {
		return nil, fmt.Errorf("the cache %s: %w", dir, err)
	}
	return &Cache{dir: dir, replay: replay, asking: map[string]chan struct{}{}}, nil
}

// Replays says whether nothing is ever asked.
func (c *Cache) Replays() bool { return c != nil && c.replay }

// Error says that the cache cannot answer: a question that was not recorded, a damaged entry, a disk that is full. A run
// that goes on in spite of it is not the run that was recorded.
type Error struct {
	Question Question
	Dir      string
	Err      error
}

// ErrMissing is the reason of an Error about a question whose answer was not recorded.
var ErrMissing = errors.New("its answer was not recorded. A replay asks what the recorded run asked: with the same settings, weights, data and program. " +
	"Set cache.mode: record to ask the service and to keep the answer")

func (e *Error) Error() string {
	return fmt.Sprintf("the cache %s: %s was asked %s: %v", e.Dir, quote(e.Question.Service), quote(e.Question.Text), e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

func quote(s string) string {
	if len(s) > maxQuoted {
		s = strings.ToValidUTF8(s[:maxQuoted], "") + "…"
	}
	return fmt.Sprintf("%q", s)
}

// Answer returns the answer that is kept for a question. If there is none it asks and keeps the answer, or with replay
// returns an *Error. All who ask get the answer that was kept first. An error of ask means that there is no answer: it is
// returned, and nothing is kept.
func (c *Cache) Answer(ctx context.Context, q Question, ask func(context.Context) (Answer, error)) (Answer, error) {
	if c == nil {
		return ask(ctx)
	}
	q = Question{valid(q.Service), valid(q.Text)}
	path := c.path(q)
	for {
		kept, err := read(path, q)
		switch {
		case err == nil:
			return kept, nil
		case !errors.Is(err, fs.ErrNotExist):
			return Answer{}, &Error{q, c.dir, err}
		case c.replay:
			return Answer{}, &Error{q, c.dir, ErrMissing}
		}
		other, done := c.claim(path)
		if other == nil {
			defer done()
			return c.ask(ctx, path, q, ask)
		}
		select {
		case <-other:
		case <-ctx.Done():
			return Answer{}, ctx.Err()
		}
	}
}

// claim makes the caller the one that asks, until it calls done; or it returns what is closed when another one is done.
func (c *Cache) claim(path string) (other <-chan struct{}, done func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if other, ok := c.asking[path]; ok {
		return other, nil
	}
	mine := make(chan struct{})
	c.asking[path] = mine
	return nil, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.asking, path)
		close(mine)
	}
}

// ask asks, and keeps the answer unless another one was there first.
func (c *Cache) ask(ctx context.Context, path string, q Question, ask func(context.Context) (Answer, error)) (Answer, error) {
	if kept, err := read(path, q); err == nil { // kept between the caller's look and its claim
		return kept, nil
	}
	answer, err := ask(ctx)
	if err != nil {
		return Answer{}, err
	}
	answer = Answer{valid(answer.Text), valid(answer.Error), valid(answer.Kind)}
	data, err := encode(q, answer)
	if err == nil {
		err = durable.MkdirAll(durable.OS{}, filepath.Dir(path))
	}
	if err == nil {
		err = durable.Publish(path, data)
	}
	if errors.Is(err, fs.ErrExist) { // another process was first
		answer, err = read(path, q)
	}
	if err != nil {
		return Answer{}, &Error{q, c.dir, err}
	}
	return answer, nil
}

// valid replaces what is no UTF-8, which JSON cannot hold.
func valid(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

// path is the file of a question's answer.
func (c *Cache) path(q Question) string {
	name := digest(q.Service, q.Text)
	return filepath.Join(c.dir, name[:2], name[2:]+".json")
}

// digest tells lists of texts apart.
func digest(texts ...string) string {
	h := sha256.New()
	for _, t := range texts {
		fmt.Fprintf(h, "%d:%s", len(t), t)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// entry is the content of a file. Service and question are for people, who also find failures by their "error".
type entry struct {
	Format   int    `json:"format"`
	Service  string `json:"service"`
	Question string `json:"question"`
	Text     string `json:"text"`
	Error    string `json:"error,omitempty"`
	Kind     string `json:"kind,omitempty"`
	Digest   string `json:"digest"`
}

func encode(q Question, a Answer) ([]byte, error) {
	e := entry{format, q.Service, q.Text, a.Text, a.Error, a.Kind, digest(q.Service, q.Text, a.Text, a.Error, a.Kind)}
	data, err := json.MarshalIndent(e, "", " ")
	if err == nil && len(data) > maxEntry {
		err = fmt.Errorf("the answer has more than %d bytes", maxEntry)
	}
	return append(data, '\n'), err
}

// read reads the answer to a question.
func read(path string, q Question) (Answer, error) {
	data, err := durable.ReadSmall(path, maxEntry+1)
	if err != nil {
		return Answer{}, err
	}
	a, err := decode(data, q)
	if err != nil {
		return Answer{}, fmt.Errorf("its entry %s is damaged: %w. Remove it, and record again", path, err)
	}
	return a, nil
}

// decode reads an entry, which must be of the question.
func decode(data []byte, q Question) (Answer, error) {
	object, err := strictjson.Object(data)
	if err != nil {
		return Answer{}, err
	}
	text := func(key string) string {
		s, _ := object[key].(string)
		return s
	}
	switch a := (Answer{text("text"), text("error"), text("kind")}); {
	case fmt.Sprint(object["format"]) != fmt.Sprint(format):
		return Answer{}, fmt.Errorf("format %v: want %d", object["format"], format)
	case text("digest") != digest(q.Service, q.Text, a.Text, a.Error, a.Kind):
		return Answer{}, errors.New("its digest does not fit the question and the answer")
	default:
		return a, nil
	}
}
