package gateway

import (
	"bytes"
	"testing"
	"time"

	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/tokenizertest"
)

// TestKeys: a key is refused if it is wrong or expired, or belongs to another run, to an
// earlier round, or to an attempt that was replaced or has ended.
func TestKeys(t *testing.T) {
	s := newStage(t, tokenizertest.Golden(t, "smollm2"), func(string) string { return "ok" })
	ask := func(key string) int {
		status, _ := s.post("/v1/chat/completions", key, jsonObject{"model": "planner", "messages": []jsonObject{textMessage("user", "?")}})
		return status
	}
	good := ticketOf("q", 2)
	if status := ask(runSecret.Key(good)); status != 200 {
		t.Fatalf("a good key: got status %d", status)
	}
	change := func(f func(*Ticket)) string {
		other := good
		f(&other)
		return runSecret.Key(other)
	}
	foreign := Secret(bytes.Repeat([]byte{8}, SecretSize))
	key := runSecret.Key(good)
	for name, c := range map[string]struct {
		key  string
		want int
	}{
		"none": {"", 401}, "nonsense": {"sk-1234", 401}, "foreign": {foreign.Key(good), 401}, "cut": {key[:len(key)-2], 401},
		"changed":    {key[:10] + "A" + key[11:], 401},
		"expired":    {change(func(t *Ticket) { t.Deadline = time.Now().Unix() - 1 }), 401},
		"run":        {change(func(t *Ticket) { t.Run = "other" }), 401},
		"round":      {change(func(t *Ticket) { t.Round = "before" }), 409},
		"superseded": {change(func(t *Ticket) { t.Attempt = 1 }), 409},
	} {
		if status := ask(c.key); status != c.want {
			t.Errorf("%s: got status %d, want %d", name, status, c.want)
		}
	}
	s.finish("planner", good)
	if status := ask(runSecret.Key(good)); status != 409 {
		t.Errorf("after the end of the attempt: got status %d, want 409", status)
	}
	if _, err := Secret(nil).ticket(Secret(nil).Key(good), time.Now()); err == nil {
		t.Error("a key signed with an empty secret was accepted")
	}
}
