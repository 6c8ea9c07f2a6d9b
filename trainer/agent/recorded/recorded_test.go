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

func serviceOff(context.Context) (Answer, error) { return Answer{}, errors.New("the service is off") }

// TestReplay: a cache that is opened again replays recorded answers without the service.
func TestReplay(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	var s service
	questions := []Question{{"x", "1"}, {"x", "2"}, {"x1", ""}, {"", "x1"}, {"y", "\"é\n"}, {"y\xff", "\xfe"}}
	for round := range 3 {
		c := open(t, dir, round == 2)
		ask := s.ask
		if round == 2 {
			ask = serviceOff
		}
		for i, q := range questions {
			if a, err := c.Answer(t.Context(), q, ask); err != nil || a.Text != fmt.Sprint("answer ", i+1) {
				t.Errorf("round %d, %q: got %q, error %v", round, q, a, err)
			}
		}
	}
	for range 2 {
		said := func(context.Context) (Answer, error) { return Answer{Text: "caf\xe9"}, nil }
		if a, err := open(t, dir, false).Answer(t.Context(), Question{"x", "bytes"}, said); err != nil || a.Text != "caf\uFFFD" {
			t.Errorf("an answer that is not text: got %q, error %v", a, err)
		}
	}
	failure := Answer{Error: "no such page", Kind: "failed"}
	for _, ask := range []func(context.Context) (Answer, error){func(context.Context) (Answer, error) { return failure, nil }, serviceOff} {
		if a, err := open(t, dir, false).Answer(t.Context(), Question{"x", "failing"}, ask); a != failure || err != nil {
			t.Errorf("%v, %v", a, err)
		}
	}
	if left, err := filepath.Glob(filepath.Join(dir, "*", ".*")); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

// TestReplayMisses: a replay returns an error for a question that was not recorded, and does
// not ask the service. The error names the question and the remedy.
func TestReplayMisses(t *testing.T) {
	dir := t.TempDir()
	var s service
	_, err := open(t, dir, true).Answer(t.Context(), Question{"visit", `{"url":"https://a.org"}`}, s.ask)
	var of *Error
	if !errors.As(err, &of) || !errors.Is(err, ErrMissing) || s.asked.Load() > 0 {
		t.Fatalf("got error %v after %d questions to the service, want ErrMissing after none", err, s.asked.Load())
	}
	for _, part := range []string{dir, `"visit"`, `https://a.org`, "cache.mode: record"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("got error %v, want %s in it", err, part)
		}
	}
	if _, err := Open(filepath.Join(dir, "absent"), true); err == nil || !strings.Contains(err.Error(), "record a run first") {
		t.Errorf("an absent folder: got error %v", err)
	}
}

// TestNoAnswer: a service that returned an error is asked again the next time. Without a cache it is asked each time.
func TestNoAnswer(t *testing.T) {
	c := open(t, t.TempDir(), false)
	if _, err := c.Answer(t.Context(), Question{"x", "1"}, serviceOff); err == nil {
		t.Error("no error")
	}
	var s service
	if a, err := c.Answer(t.Context(), Question{"x", "1"}, s.ask); err != nil || a.Text != "answer 1" {
		t.Errorf("%v, %v", a, err)
	}
	var none *Cache
	for want := 2; want < 4; want++ {
		if a, err := none.Answer(t.Context(), Question{"x", "1"}, s.ask); err != nil || a.Text != fmt.Sprint("answer ", want) {
			t.Errorf("without a cache: got %v, want answer %d; error %v", a, want, err)
		}
	}
}

// TestTogether: concurrent callers with the same question get the same answer, the first one.
// The callers of one cache ask the service once.
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
			t.Errorf("callers got different answers: %q and %q", a, answers[0])
		}
	}
	if n := s.asked.Load(); n > int64(len(caches)) {
		t.Errorf("%d caches asked the service %d times, want at most once each", len(caches), n)
	}
}

// TestFirstAnswerCounts: if another process stores its answer while this one asks, both get the stored answer.
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

// TestWaiting: a caller that waits for another caller's answer can be cancelled.
func TestWaiting(t *testing.T) {
	c := open(t, t.TempDir(), false)
	q := Question{"x", "1"}
	ctx, cancel := context.WithCancel(t.Context())
	_, err := c.Answer(t.Context(), q, func(context.Context) (Answer, error) {
		cancel()
		if _, err := c.Answer(ctx, q, serviceOff); !errors.Is(err, context.Canceled) {
			t.Errorf("a cancelled wait: got error %v, want %v", err, context.Canceled)
		}
		return Answer{Text: "a"}, nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestDamage: a damaged entry is an error that names its file, and the service is not asked.
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
				t.Errorf("%s: got answer %v and error %v after %d questions, want an error", name, a, err, s.asked.Load())
			}
		}
	}
}

// TestFullDisk: an answer that cannot be stored is an error.
func TestFullDisk(t *testing.T) {
	c := open(t, t.TempDir(), false)
	q := Question{"x", "1"}
	if err := os.WriteFile(filepath.Dir(c.path(q)), nil, 0o600); err != nil { // a file with the name of the folder
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
			t.Errorf("%q is decoded as %v, and as %v after encoding; error %v", data, a, b, err)
		}
	})
}

func TestPathsAreApart(t *testing.T) {
	c := open(t, t.TempDir(), false)
	if c.path(Question{"a", "b:c"}) == c.path(Question{"a:b", "c"}) || c.path(Question{"ab", ""}) == c.path(Question{"", "ab"}) {
		t.Error("two different questions have the same file")
	}
	if _, err := os.Stat(c.path(Question{"a", "b"})); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}
