package gateway

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Ticket identifies one attempt of a program at a rollout. A signed Ticket is the program's API key.
type Ticket struct {
	Run      string `json:"run"`
	Round    string `json:"round"` // the run's round, which ends when the team goes back to a checkpoint
	Phase    string `json:"phase"` // such as step-12
	Query    string `json:"query"`
	Rollout  int    `json:"rollout"`
	Attempt  int    `json:"attempt"`  // counts from 1; a later attempt replaces the earlier ones
	Deadline int64  `json:"deadline"` // Unix seconds, after which the key is refused
}

// rollout names the ticket's rollout within its phase.
func (t Ticket) rollout() string { return fmt.Sprintf("%s/%d", t.Query, t.Rollout) }

// Secret signs the tickets of a run. The run's workers share it.
type Secret []byte

// SecretSize is the number of bytes of a Secret.
const SecretSize = 32

const (
	keyPrefix = "mgrpo-"
	maxKey    = 4 << 10 // bytes of a key
)

var errKey = errors.New("the API key is not a ticket of this run")

// Key returns the API key of a ticket.
func (s Secret) Key(t Ticket) string {
	body, _ := json.Marshal(t) // texts and whole numbers always marshal
	text := base64.RawURLEncoding.EncodeToString(body)
	return keyPrefix + text + "." + base64.RawURLEncoding.EncodeToString(s.sign(text))
}

// ticket reads an API key. It returns an error if the key was not signed with s, or if its deadline has passed.
func (s Secret) ticket(key string, now time.Time) (t Ticket, err error) {
	text, signature, _ := strings.Cut(strings.TrimPrefix(key, keyPrefix), ".")
	signed, err := base64.RawURLEncoding.DecodeString(signature)
	if err != nil || len(s) != SecretSize || len(key) > maxKey || !strings.HasPrefix(key, keyPrefix) || !hmac.Equal(signed, s.sign(text)) {
		return Ticket{}, errKey
	}
	body, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || json.Unmarshal(body, &t) != nil {
		return Ticket{}, errKey
	}
	if now.Unix() > t.Deadline {
		return Ticket{}, fmt.Errorf("the API key expired at %s", time.Unix(t.Deadline, 0).UTC().Format(time.RFC3339))
	}
	return t, nil
}

func (s Secret) sign(text string) []byte {
	mac := hmac.New(sha256.New, s)
	mac.Write([]byte(text))
	return mac.Sum(nil)
}
