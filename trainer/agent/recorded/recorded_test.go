package recorded

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

func open(t *testing.T, dir string, replay bool) *Cache {
	t.Helper()
	c, err := Open(dir, replay)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// service answers every question with a number of its own.
type service struct{ asked atomic.Int64 }

func (s *service) ask(context.Context) (Answer, error) {
	return Answer{Text: fmt.Sprint("answer ", s.asked.Add(1))}, nil
}

func nobody(context.Context) (Answer, error) { return Answer{}, errors.New("the service is off") }

// A cache opened anew replays recorded answers without the service.
func TestReplay(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	var s service
	questions := []Question{{"x", "1"}, {"x", "2"}, {"x1", ""}, {"", "x1"}, {"y", "\"é\n"}, {"y\xff", "\xfe"}}
	for round := range 3 {
		c := open(t, dir, round == 2)
		ask := s.ask
		if round == 2 {
			ask = nobody
		}
		for i, q := range questions {
			if a, err := c.Answer(t.Context(), q, ask); err != nil || a.Text != fmt.Sprint("answer ", i+1) {
				t.Errorf("round %d, %q: %q, %v", round, q, a, err)
			}
		}
	}
	for range 2 {
		said := func(context.Context) (Answer, error) { return Answer{Text: "caf\xe9"}, nil }
		if a, err := open(t, dir, false).Answer(t.Context(), Question{"x", "bytes"}, said); err != nil || a.Text != "caf\uFFFD" {
			t.Errorf("what is no text: %q, %v", a, err)
		}
	}
	failure := Answer{Error: "no such page", Kind: "failed"}
	for _, ask := range []func(context.Context) (Answer, error){func(context.Context) (Answer, error) { return failure, nil }, nobody} {
		if a, err := open(t, dir, false).Answer(t.Context(), Question{"x", "failing"}, ask); a != failure || err != nil {
			t.Errorf("%v, %v", a, err)
		}
	}
	if left, err := filepath.Glob(filepath.Join(dir, "*", ".*")); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

// A question that was not recorded is an error that names the question and the remedy, and the service is not asked.
func TestReplayMisses(t *testing.T) {
	dir := t.TempDir()
	var s service
	_, err := open(t, dir, true).Answer(t.Context(), Question{"visit", `{"url":"https://a.org"}`}, s.ask)
	var of *Error
	if !errors.As(err, &of) || !errors.Is(err, ErrMissing) || s.asked.Load() > 0 {
		t.Fatalf("%v after %d questions", err, s.asked.Load())
	}
	for _, part := range []string{dir, `"visit"`, `https://a.org`, "cache.mode: record"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%v: does not say %s", err, part)
		}
	}
	if _, err := Open(filepath.Join(dir, "absent"), true); err == nil || !strings.Contains(err.Error(), "record a run first") {
		t.Errorf("an absent folder: %v", err)
	}
}

// A service that gave no answer may be asked again.
func TestNoAnswer(t *testing.T) {
	c := open(t, t.TempDir(), false)
	if _, err := c.Answer(t.Context(), Question{"x", "1"}, nobody); err == nil {
		t.Error("no error")
	}
	var s service
	if a, err := c.Answer(t.Context(), Question{"x", "1"}, s.ask); err != nil || a.Text != "answer 1" {
		t.Errorf("%v, %v", a, err)
	}
	var none *Cache
	for want := 2; want < 4; want++ {
		if a, err := none.Answer(t.Context(), Question{"x", "1"}, s.ask); err != nil || a.Text != fmt.Sprint("answer ", want) {
			t.Errorf("without a cache: %v, %v", a, err)
		}
	}
}

// All concurrent callers get the same answer. Goroutines of one process ask once, several processes may each ask, and
// the first answer counts.
func TestTogether(t *testing.T) {
	dir := t.TempDir()
	var s service
	var wg sync.WaitGroup
	answers := make([]string, 60)
	caches := []*Cache{open(t, dir, false), open(t, dir, false), open(t, dir, false)}
	for i := range answers {
		wg.Go(func() {
			a, err := caches[i%3].Answer(t.Context(), Question{"x", "1"}, s.ask)
			if err != nil {
				t.Error(err)
			}
			answers[i] = a.Text
		})
	}
	wg.Wait()
	for _, a := range answers {
		if a != answers[0] {
			t.Errorf("%q beside %q", a, answers[0])
		}
	}
	if n := s.asked.Load(); n > int64(len(caches)) {
		t.Errorf("%d caches asked %d times", len(caches), n)
	}
}

// Another process keeps its answer while this one asks: both have that answer afterwards.
func TestFirstAnswerCounts(t *testing.T) {
	dir := t.TempDir()
	q := Question{"x", "1"}
	mine, theirs := open(t, dir, false), open(t, dir, false)
	got, err := mine.Answer(t.Context(), q, func(ctx context.Context) (Answer, error) {
		if _, err := theirs.Answer(ctx, q, func(context.Context) (Answer, error) { return Answer{Text: "theirs"}, nil }); err != nil {
			t.Error(err)
		}
		return Answer{Text: "mine"}, nil
	})
	if err != nil || got.Text != "theirs" {
		t.Errorf("%v, %v", got, err)
	}
}

// One who waits for another one's answer may give up.
func TestWaiting(t *testing.T) {
	c := open(t, t.TempDir(), false)
	q := Question{"x", "1"}
	ctx, cancel := context.WithCancel(t.Context())
	_, err := c.Answer(t.Context(), q, func(context.Context) (Answer, error) {
		cancel()
		if _, err := c.Answer(ctx, q, nobody); !errors.Is(err, context.Canceled) {
			t.Errorf("waiting: %v", err)
		}
		return Answer{Text: "a"}, nil
	})
	if err != nil {
		t.Error(err)
	}
}

// A damaged entry is an error, never an answer.
func TestDamage(t *testing.T) {
	q := Question{"x", "1"}
	good, err := encode(q, Answer{Text: "right"})
	if err != nil {
		t.Fatal(err)
	}
	other, err := encode(Question{"x", "2"}, Answer{Text: "of another"})
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{
		"cut": good[:len(good)/2], "empty": {}, "of another question": other,
		"changed":       []byte(strings.Replace(string(good), "right", "wrong", 1)),
		"made an error": []byte(strings.Replace(string(good), `"text"`, `"error": "x", "text"`, 1)),
		"twice":         []byte(strings.Replace(string(good), `"text"`, `"text": "wrong", "text"`, 1)),
		"another form":  []byte(strings.Replace(string(good), `"format": 1`, `"format": 2`, 1)),
	} {
		for _, replay := range []bool{true, false} {
			c := open(t, t.TempDir(), replay)
			if err := os.MkdirAll(filepath.Dir(c.path(q)), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(c.path(q), data, 0o600); err != nil {
				t.Fatal(err)
			}
			var s service
			a, err := c.Answer(t.Context(), q, s.ask)
			var of *Error
			if !errors.As(err, &of) || !strings.Contains(err.Error(), "damaged") || !strings.Contains(err.Error(), c.path(q)) || s.asked.Load() > 0 {
				t.Errorf("%s: %v, %v", name, a, err)
			}
		}
	}
}

// An answer that cannot be stored is not returned.
func TestFullDisk(t *testing.T) {
	c := open(t, t.TempDir(), false)
	q := Question{"x", "1"}
	if err := os.WriteFile(filepath.Dir(c.path(q)), nil, 0o600); err != nil { // where a folder should be
		t.Fatal(err)
	}
	var s service
	var of *Error
	if a, err := c.Answer(t.Context(), q, s.ask); !errors.As(err, &of) {
		t.Errorf("%v, %v", a, err)
	}
}

func FuzzEntry(f *testing.F) {
	q := Question{"x", "1"}
	good, err := encode(q, Answer{Text: "right", Error: "e", Kind: "k"})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Fuzz(func(t *testing.T, data []byte) {
		a, err := decode(data, q)
		if err != nil {
			return
		}
		again, err := encode(q, a)
		if err != nil {
			t.Fatal(err)
		}
		if b, err := decode(again, q); err != nil || b != a {
			t.Errorf("%q becomes %v, %v", data, b, err)
		}
	})
}

func TestPathsAreApart(t *testing.T) {
	c := open(t, t.TempDir(), false)
	if c.path(Question{"a", "b:c"}) == c.path(Question{"a:b", "c"}) || c.path(Question{"ab", ""}) == c.path(Question{"", "ab"}) {
		t.Error("two questions have one file")
	}
	if _, err := os.Stat(c.path(Question{"a", "b"})); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}
