package roofline

import "github.com/mgrpo/mgrpo/trainer/model/arch"

// Work describes the conversations that an agent samples and trains on in a step. In a conversation every turn has Sampled tokens, and
// Results tokens follow every turn except the last.
type Work struct {
	Prompts, Rollouts int // different prompts; conversations of each, which compute the prompt once
	Prompt            int // tokens
	Turns             int // of each conversation
	Sampled, Results  int // tokens of a turn; tokens of the results between two turns
}

// Sequences returns the number of conversations.
func (w Work) Sequences() float64 { return float64(w.Prompts * w.Rollouts) }

// share returns the part of the work for n of the processes: whole groups if there are enough.
func (w Work) share(n, processes int) Work {
	up := func(x int) int { return (x*n + processes - 1) / processes }
	if w.Prompts*n < processes {
		w.Rollouts = up(w.Prompts * w.Rollouts)
	}
	w.Prompts = up(w.Prompts)
	return w
}

// Length returns the number of tokens of a conversation.
func (w Work) Length() int { return w.turn(w.Turns) - w.Results }

// turn returns the position at which turn t begins to sample.
func (w Work) turn(t int) int { return w.Prompt + t*(w.Sampled+w.Results) }

// SampledTokens returns the number of tokens that are sampled and trained on.
func (w Work) SampledTokens() float64 { return w.Sequences() * float64(w.Turns*w.Sampled) }

// rows are the positions that one or several forward passes compute. pairs and keys count the (query, key) pairs of attention and the
// cached keys that it reads.
type rows struct {
	n     float64
	spans []span
}

// span is the positions [from, to) of `times` sequences, computed at most `piece` at a time.
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

// pieces returns the number of pieces of all sequences.
func (r rows) pieces() (n float64) {
	for _, s := range r.spans {
		n += s.times * float64((s.to-s.from+s.piece-1)/s.piece)
	}
	return n
}

// pairs returns the number of (query, key) pairs of a layer whose queries attend to `window` keys; 0: to all keys before them.
func (r rows) pairs(window int) (sum float64) {
	for _, s := range r.spans {
		sum += s.times * (attendedKeys(s.to, window) - attendedKeys(s.from, window))
	}
	return sum
}

// keys returns the number of keys that are read: for each piece, the keys up to its last row.
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

// attendedKeys returns the number of keys that each of the first n positions attends to, summed.
func attendedKeys(n, window int) float64 {
	full := n
	if window > 0 {
		full = min(n, window)
	}
	return float64(full)*float64(full+1)/2 + float64(n-full)*float64(window)
}

// prompts returns the rows that generation computes together: prompts, and results with the token sampled before them.
func (w Work) prompts(gpu bool) (r rows) {
	r.add(0, w.Prompt, arch.PassRows(gpu), float64(w.Prompts))
	for t := 1; t < w.Turns; t++ {
		r.add(w.turn(t)-w.Results-1, w.turn(t), arch.PassRows(gpu), w.Sequences())
	}
	return r
}

// decoded returns the rows that generation computes one by one. A turn's first token follows from the rows before it. Its last token is
// computed with the results, or never.
func (w Work) decoded() (r rows) {
	for t := range w.Turns {
		r.add(w.turn(t), w.turn(t)+w.Sampled-1, 1, w.Sequences())
	}
	return r
}

// trained returns the rows of a forward pass of training.
func (w Work) trained() (r rows) {
	whole := w.Length()
	r.add(0, w.Prompt, whole, float64(w.Prompts))
	r.add(w.Prompt, whole-1, whole, w.Sequences())
	return r
}
