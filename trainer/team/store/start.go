package store

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mgrpo/mgrpo/trainer/internal/failpoint"
)

// Start is the state from which a round continues.
type Start struct {
	Offer
	Refused []string // newer states, with the agents that do not have them
	Follows bool     // the worker took over the place in the middle of a round
}

// Start waits until every agent has offered its states, and chooses the newest state that all agents offer. If there is
// none, the error lists the offers. A worker that took over a place in the middle of a round continues from the agent's
// version in the store. The wait ends with the member's place.
func (r *Round) Start(ctx context.Context) (Start, error) {
	ctx, cancel := WithPlace(ctx, r.at.ctx)
	defer cancel()
	version, err := r.at.field(ctx, r.at.key("versions"), r.at.agent, "the version of "+r.at.agent)
	if err != nil {
		return Start{}, err
	}
	if version != "" { // the agent has started in this round
		offered := r.offers.versions()
		i := slices.Index(offered, version)
		if i < 0 {
			i = slices.Index(offered, fromStartText)
		}
		start := Start{Offer: r.offers[i], Follows: true} // joinScript gives the place only to a worker that offers it
		start.Date, err = r.at.field(ctx, r.at.key("meta"), "date", "the date of the round")
		if err == nil && !validDate(start.Date) {
			err = &MalformedError{Key: r.at.key("meta"), Msg: fmt.Sprintf("%q is not a date", clip(start.Date))}
		}
		return start, err
	}
	offered, err := gather(ctx, r.at.Store, "joining the run", decode[offers], func([]string) {}, "offers")
	if err != nil {
		return Start{}, err
	}
	start, err := newestShared(r.at.agents.all(), offered)
	if err != nil {
		return Start{}, err
	}
	defer failpoint.Around("join.start")()
	_, err = r.at.write(ctx, startScript, "the start", values{
		"versions": r.at.key("versions"), "record": r.at.key("record"), "meta": r.at.key("meta"),
		"version": max(start.Version, 0), "offered": start.Version, "digest": start.Digest, "date": start.Date})
	return start, err
}

// newestShared returns the newest state that all agents offer. If several states have the same version, it is the first one
// that the main agent offers. agents is in the run's order.
func newestShared(agents []string, present map[string]offers) (Start, error) {
	var start Start
	var candidates offers
	for _, a := range agents {
		candidates = append(candidates, present[a]...)
	}
	slices.SortStableFunc(candidates, func(a, b Offer) int { return cmp.Compare(b.Version, a.Version) })
	for i, o := range candidates { // the main agent's offers come first among equal versions
		if slices.ContainsFunc(candidates[:i], o.same) {
			continue
		}
		var without []string
		for _, a := range agents {
			if !slices.ContainsFunc(present[a], o.same) {
				without = append(without, a)
			}
		}
		if len(without) == 0 {
			start.Offer = o
			return start, nil
		}
		start.Refused = append(start.Refused, fmt.Sprintf("%s is missing at %s", o, strings.Join(without, ", ")))
	}
	return start, fmt.Errorf("store: there is no state that all agents can start from: %s; "+
		"restore the missing checkpoints of run.dir, or start a new run with another run.dir for all", strings.Join(start.Refused, "; "))
}

// FromStart is the version of an offer to begin the run from the start, without a checkpoint.
const FromStart = -1

// Offer is a state from which a worker can continue: a verified checkpoint, or the start of the run.
type Offer struct {
	Version int64  `json:"version"`          // number of its training steps, or FromStart
	Digest  string `json:"digest,omitempty"` // of its manifest or, with evaluation results, of these; the same for all agents
	// Today's date for prompts, YYYY-MM-DD, if the run continues from here; the main agent's date is used.
	Date string `json:"date,omitempty"`
}

// same reports whether two workers offer the same state.
func (o Offer) same(other Offer) bool { return o.Version == other.Version && o.Digest == other.Digest }

func (o Offer) String() string {
	if o.Version == FromStart {
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
		if x.Version < FromStart || len(x.Digest) > 128 || strings.ContainsFunc(x.Digest, func(c rune) bool { return c <= ' ' || c > '~' }) {
			return fmt.Errorf("version %d with digest %.140q is not a state to start from", x.Version, x.Digest)
		}
		if !validDate(x.Date) {
			return fmt.Errorf("version %d is offered with the date %.140q: want YYYY-MM-DD", x.Version, x.Date)
		}
	}
	return nil
}

// fromStartText stands for FromStart in lists of versions.
const fromStartText = "afresh"

// versions returns the versions of the offers as text.
func (o offers) versions() []string {
	out := make([]string, len(o))
	for i, x := range o {
		if out[i] = strconv.FormatInt(x.Version, 10); x.Version == FromStart {
			out[i] = fromStartText
		}
	}
	return out
}

func validDate(s string) bool {
	_, err := time.Parse(time.DateOnly, s)
	return s == "" || err == nil
}
