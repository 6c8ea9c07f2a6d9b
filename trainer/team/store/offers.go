package store

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Afresh is the version of an offer to begin the run from the start, without a checkpoint.
const Afresh = -1

// Offer is a state from which a worker can continue: a verified checkpoint, or the start of the run.
type Offer struct {
	Version int64  `json:"version"`          // number of its training steps, or Afresh
	Digest  string `json:"digest,omitempty"` // of its manifest, which is the same for all agents
	// Today's date for prompts, YYYY-MM-DD, if the run continues from here; the main agent's date is used.
	Date string `json:"date,omitempty"`
}

// same reports whether two workers offer the same state.
func (o Offer) same(other Offer) bool { return o.Version == other.Version && o.Digest == other.Digest }

func (o Offer) String() string {
	if o.Version == Afresh {
		return "a start from the beginning"
	}
	return fmt.Sprintf("the checkpoint of version %d (%.8s)", o.Version, o.Digest)
}

// offers lists the states from which an agent can start.
type offers []Offer

const maxOffers = 1000

func (o *offers) check() error {
	if len(*o) == 0 || len(*o) > maxOffers {
		return fmt.Errorf("the worker offers %d states to start from; the number must be 1 to %d", len(*o), maxOffers)
	}
	for _, x := range *o {
		if x.Version < Afresh || len(x.Digest) > 128 || strings.ContainsFunc(x.Digest, func(c rune) bool { return c <= ' ' || c > '~' }) {
			return fmt.Errorf("version %d with digest %.140q is not a state to start from", x.Version, x.Digest)
		}
		if !validDate(x.Date) {
			return fmt.Errorf("version %d is offered with the date %.140q: want YYYY-MM-DD", x.Version, x.Date)
		}
	}
	return nil
}

// versions returns the versions of the offers as text, "afresh" for Afresh.
func (o offers) versions() []string {
	out := make([]string, len(o))
	for i, x := range o {
		if out[i] = strconv.FormatInt(x.Version, 10); x.Version == Afresh {
			out[i] = "afresh"
		}
	}
	return out
}

func validDate(s string) bool {
	_, err := time.Parse(time.DateOnly, s)
	return s == "" || err == nil
}
