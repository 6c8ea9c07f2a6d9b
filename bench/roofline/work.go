package roofline

import (
	"math"

	"github.com/mgrpo/mgrpo/trainer/model/arch"
)

// Work is what an agent samples and trains on in a step. In every conversation turns of Sampled tokens are followed by Results
// tokens that it is told, but for the last.
type Work struct {
	Prompts, Rollouts int // different prompts, and the conversations of each, which compute it once
	Prompt            int // tokens
	Turns             int // of each conversation
	Sampled, Results  int // tokens of a turn, and of the results between two
}

// Sequences is the number of conversations.
func (w Work) Sequences() float64 { return float64(w.Prompts * w.Rollouts) }

// share is what n of so many processes do of the work: whole groups where there are enough.
func (w Work) share(n, processes int) Work {
	up := func(x int) int { return (x*n + processes - 1) / processes }
	if w.Prompts*n < processes {
		w.Rollouts = up(w.Prompts * w.Rollouts)
	}
	w.Prompts = up(w.Prompts)
	return w
}

// Length is the number of tokens of a conversation.
func (w Work) Length() int { return w.turn(w.Turns) - w.Results }

// turn is the position at which a turn begins to sample.
func (w Work) turn(t int) int { return w.Prompt + t*(w.Sampled+w.Results) }

// SampledTokens is the number of tokens that are sampled, and trained.
func (w Work) SampledTokens() float64 { return w.Sequences() * float64(w.Turns*w.Sampled) }

// rows of a forward pass, or of several: positions that are computed, the (query, key) pairs that a layer with a window looks at, and
// the cached keys that it reads.
type rows struct {
	n     float64
	spans []span
}

// span is positions [from, to) of so many sequences, computed at most piece at a time.
type span struct {
	from, to, piece int
	times           float64
}

func (r *rows) add(from, to, piece int, times float64) {
	if to > from {
		r.n += float64(to-from) * times
		r.spans = append(r.spans, span{from, to, piece, times})
	}
}

// pairs of a layer whose queries see so many keys; 0: all before them.
func (r rows) pairs(window int) (sum float64) {
	for _, s := range r.spans {
		sum += s.times * (seen(s.to, window) - seen(s.from, window))
	}
	return sum
}

// keys that are read: for each piece those before its last row.
func (r rows) keys(window int) (sum float64) {
	for _, s := range r.spans {
		for from := s.from; from < s.to; from += s.piece {
			to := min(from+s.piece, s.to)
			first := 0
			if window > 0 {
				first = max(from+1-window, 0)
			}
			sum += s.times * float64(to-first)
		}
	}
	return sum
}

// seen is the sum over the first n positions of how many keys each sees.
func seen(n, window int) float64 {
	full := n
	if window > 0 {
		full = min(n, window)
	}
	return float64(full)*float64(full+1)/2 + float64(n-full)*float64(window)
}

// prompts are the rows that generation computes at once: prompts, and results with the token sampled before them.
func (w Work) prompts(gpu bool) (r rows) {
	r.add(0, w.Prompt, arch.PassRows(gpu), float64(w.Prompts))
	for t := 1; t < w.Turns; t++ {
		r.add(w.turn(t)-w.Results-1, w.turn(t), arch.PassRows(gpu), w.Sequences())
	}
	return r
}

// decoded are the rows that it computes one by one. A turn's first token follows from the rows before it, and its last is
// computed with the results or never.
func (w Work) decoded() (r rows) {
	for t := range w.Turns {
		r.add(w.turn(t), w.turn(t)+w.Sampled-1, 1, w.Sequences())
	}
	return r
}

// trained are the rows of a forward pass of training.
func (w Work) trained() (r rows) {
	whole := w.Length()
	r.add(0, w.Prompt, whole, float64(w.Prompts))
	r.add(w.Prompt, whole-1, whole, w.Sequences())
	return r
}

// Unchosen is the share of a mixture's experts that no row of a pass goes through, if each is as likely as another.
func Unchosen(m *arch.Mixture, rows float64) float64 {
	return math.Pow(1-float64(m.PerToken)/float64(m.Experts), rows)
}
