// Package recorded stores the answers of outside services, so that a run can be repeated without them. Examples are a
// web page, a judge's reply and the result of a third-party tool. Any number of processes may use one folder at once.
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

	"github.com/mgrpo/mgrpo/trainer/internal/durable"
	"github.com/mgrpo/mgrpo/trainer/internal/strictjson"
	"github.com/mgrpo/mgrpo/trainer/internal/texts"
)

const (
	format    = 1
	maxEntry  = 64 << 20 // bytes of an entry's file
	maxQuoted = 300      // bytes of a question in an error
)

// Question is a question to a service. Equal questions get equal answers.
type Question struct {
	Service string // the service, with all settings on which its answers depend
	Text    string
}

// Answer is the answer of a service: a text, or an error. Errors are stored like any other answer, because the
// conversation has seen them.
type Answer struct {
	Text  string
	Error string // "": no error
	Kind  string // kind of the error, in the caller's own terms
}

// Cache is a folder of answers. A nil Cache stores nothing.
type Cache struct {
	dir    string
	replay bool

	mu     sync.Mutex
	asking map[string]chan struct{} // by file; closed when the answer is stored or has failed
}

// Open opens a folder. With replay, the folder must exist and no question is ever sent to a service.
func Open(dir string, replay bool) (*Cache, error) {
	if replay {
		if info, err := os.Stat(dir); err != nil || !info.IsDir() {
			return nil, fmt.Errorf("the cache %s is not a folder: record a run first, with cache.mode: record", dir)
		}
	} else if err := durable.MkdirAll(durable.OS{}, dir); err != nil {
		return nil, fmt.Errorf("the cache %s: %w", dir, err)
	}
	return &Cache{dir: dir, replay: replay, asking: map[string]chan struct{}{}}, nil
}

// Replays reports whether the cache only replays, so that no question is ever sent to a service.
func (c *Cache) Replays() bool { return c != nil && c.replay }

// Error means that the cache has no answer: the question was not recorded, its entry is damaged, or the disk is full. A
// run that continued after it would differ from the recorded run.
type Error struct {
	Question Question
	Dir      string
	Err      error
}

// ErrMissing is the reason of an Error about a question whose answer was not recorded.
var ErrMissing = errors.New("its answer was not recorded. A replay asks the same questions as the recorded run only with the same settings, weights, " +
	"data and program. Set cache.mode: record to ask the service and store its answer")

func (e *Error) Error() string {
	return fmt.Sprintf("the cache %s: the question to %q, %q: %v", e.Dir, texts.Excerpt(e.Question.Service, maxQuoted),
		texts.Excerpt(e.Question.Text, maxQuoted), e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

// Answer returns the stored answer to a question. If there is none, Answer calls ask and stores its result; with replay
// it returns an *Error instead. All callers get the answer that was stored first. If ask fails, Answer returns its
// error and stores nothing.
func (c *Cache) Answer(ctx context.Context, q Question, ask func(context.Context) (Answer, error)) (Answer, error) {
	if c == nil {
		return ask(ctx)
	}
	q = Question{toValidUTF8(q.Service), toValidUTF8(q.Text)}
	path := c.path(q)
	for {
		stored, err := read(path, q)
		switch {
		case err == nil:
			return stored, nil
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

// claim lets the caller ask, and makes others wait until it calls done. If another caller is already asking, claim returns
// a channel that is closed when that caller is done.
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

// ask calls ask and stores the answer, unless another answer was stored first.
func (c *Cache) ask(ctx context.Context, path string, q Question, ask func(context.Context) (Answer, error)) (Answer, error) {
	if stored, err := read(path, q); err == nil { // stored between the caller's read and its claim
		return stored, nil
	}
	answer, err := ask(ctx)
	if err != nil {
		return Answer{}, err
	}
	answer = Answer{toValidUTF8(answer.Text), toValidUTF8(answer.Error), toValidUTF8(answer.Kind)}
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

// toValidUTF8 replaces bytes that are not UTF-8, because JSON cannot hold them.
func toValidUTF8(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

// path returns the file of a question's answer.
func (c *Cache) path(q Question) string {
	name := digest(q.Service, q.Text)
	return filepath.Join(c.dir, name[:2], name[2:]+".json")
}

// digest returns a digest of a list of texts. Different lists have different digests, even if their concatenations are
// equal.
func digest(texts ...string) string {
	h := sha256.New()
	for _, t := range texts {
		fmt.Fprintf(h, "%d:%s", len(t), t)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// entry is the content of a file. Service and question are there for people, who can also search for failures by
// "error".
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
		return Answer{}, fmt.Errorf("its entry %s is damaged: %w. Remove the file and record again", path, err)
	}
	return a, nil
}

// decode reads an entry, which must belong to the question.
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
		return Answer{}, errors.New("its digest does not match the question and the answer")
	default:
		return a, nil
	}
}
