package agent

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/engine/policy"
)

// folded returns a conversation of two delegations that is folded after the answer to the second.
func folded(t *testing.T, keep int, turns ...scriptedTurn) *stage {
	t.Helper()
	asks := []scriptedTurn{endedTurn(t, delegation("first"+strings.Repeat(", with all that belongs to it", 9))), endedTurn(t, delegation("second"))}
	whole := newStage(t, append(asks, endedTurn(t, "4"))...).run(t)
	s := newStage(t, append(asks, turns...)...)
	s.spec.Limits.Fold = Fold{At: whole.Turns[4].To, Keep: keep}
	return s
}

// trainedOnce compares the rows of a trajectory with the requests made for it. Each sampled turn follows the tokens
// that the engine received, has the engine's tokens and log-probs, and nothing else is trained.
func (s *stage) trainedOnce(t *testing.T, traj Trajectory) {
	t.Helper()
	n := 0
	for i, row := range traj.Rows() {
		if err := row.Check(); err != nil {
			t.Fatal(err)
		}
		if want := traj.ID; i > 0 && row.ID != fmt.Sprintf("%s+%d", want, i) {
			t.Errorf("row %d: got id %s", i, row.ID)
		}
		for _, turn := range row.Turns {
			if got := s.tok.Decode(row.Tokens[turn.From:turn.To], false); got != turn.Text {
				t.Errorf("row %d: a turn has text %q, want %q as its tokens decode", i, turn.Text, got)
			}
			if !turn.Sampled {
				for at := turn.From; at < turn.To; at++ {
					if row.Sampled[at] || row.LogProbs[at] != 0 {
						t.Fatalf("row %d: token %d was not sampled and is trained", i, at)
					}
				}
				continue
			}
			request, said := s.engine.requests[n], s.engine.turns[n].tokens
			if !slices.Equal(row.Tokens[:turn.From], request.Tokens) {
				t.Errorf("turn %d was sampled after %q and is trained after %q", n, s.tok.Decode(request.Tokens, false), s.tok.Decode(row.Tokens[:turn.From], false))
			}
			if !slices.Equal(row.Tokens[turn.From:turn.To], said) || row.LogProbs[turn.From] != -float32(n+1) {
				t.Errorf("turn %d has other tokens or log-probs than the engine returned", n)
			}
			n++
		}
	}
	if n != len(s.engine.requests) {
		t.Errorf("%d turns are trained, want %d as were sampled", n, len(s.engine.requests))
	}
}

// TestFold: the summary ends one stretch, and the next begins with prompt, question, summary and the turns that are kept.
func TestFold(t *testing.T) {
	for keep, rest := range map[int][]string{0: nil, 1: {delegation("second"), "solver[1] on second"}, 9: {delegation("second"), "solver[1] on second"}} {
		t.Run(fmt.Sprint(keep), func(t *testing.T) {
			s := folded(t, keep, endedTurn(t, "Both were answered."), endedTurn(t, delegation("third")), endedTurn(t, "4"))
			s.spec.Limits.Turns = 4 // the summary does not count
			traj, err := Run(t.Context(), s.spec, s.env)
			if err != nil {
				t.Fatal(err)
			}
			s.trainedOnce(t, traj)
			if len(traj.More) != 1 || traj.Answer != "4" || !traj.FormatValid || traj.Calls["solver"] != 3 || traj.SampledTurns() != 5 {
				t.Fatalf("%d more rows, %+v", len(traj.More), traj)
			}
			if asked := traj.Turns[4].Text; !strings.Contains(asked, "solver[1] on second\n\n"+askForSummary) || traj.Turns[5].Text != "Both were answered.<|im_end|>" {
				t.Errorf("asked %q, said %q", asked, traj.Turns[5].Text)
			}
			begins := traj.More[0].Turns[0].Text
			want, _, err := s.chat.Prompt("What is 2 + 2?" + afterFold + "Both were answered.")
			if err != nil || !slices.Equal(traj.More[0].Tokens[:len(want)], want) {
				t.Errorf("the second stretch begins %q, %v", begins, err)
			}
			for _, text := range rest {
				if !strings.Contains(begins, text) {
					t.Errorf("the second stretch begins without %q: %q", text, begins)
				}
			}
			if strings.Contains(begins, "on first") || strings.Contains(begins, askForSummary) || rest == nil && strings.Contains(begins, "on second") {
				t.Errorf("the second stretch begins with turns that were folded: %q", begins)
			}
			tokens, sampled, known := traj.Size()
			if want := len(traj.Tokens) + len(traj.More[0].Tokens); tokens != want || sampled != traj.SampledTokens()+traj.More[0].SampledTokens() || !known {
				t.Errorf("%d tokens, %d sampled; want %d in both rows", tokens, sampled, want)
			}
			first, second := s.engine.requests[2].Key, s.engine.requests[3].Key
			if first.Root == second.Root || second.Root != policy.Root(s.engine.requests[3].Tokens, 0) {
				t.Error("positions start again after the fold, and the key of random numbers is the same")
			}
		})
	}
}

// TestFoldAgain: each stretch is folded when it is long enough. Its version is the oldest of the versions that sampled it.
func TestFoldAgain(t *testing.T) {
	newer := endedTurn(t, "4")
	newer.version = 1
	s := newStage(t, endedTurn(t, delegation("first")), endedTurn(t, "One."), endedTurn(t, delegation("second")), endedTurn(t, "Two."), newer)
	s.spec.Limits.Fold, s.spec.MaxLag = Fold{At: 1, Keep: 3}, 1
	traj, err := Run(t.Context(), s.spec, s.env)
	if err != nil {
		t.Fatal(err)
	}
	s.trainedOnce(t, traj)
	if len(traj.More) != 2 || traj.More[1].Turns[1].Text != "4<|im_end|>" || strings.Contains(traj.More[1].Turns[0].Text, "One.") {
		t.Errorf("%d more rows: %+v", len(traj.More), traj.More)
	}
	if traj.Version != 0 || traj.More[0].Version != 0 || traj.More[1].Version != 1 {
		t.Errorf("versions %d, %d, %d", traj.Version, traj.More[0].Version, traj.More[1].Version)
	}
}

// TestFoldCutsResults checks that results that leave no room for a summary are cut, and that the conversation
// continues.
func TestFoldCutsResults(t *testing.T) {
	s := newStage(t, endedTurn(t, delegation("first")), endedTurn(t, "A long answer."), endedTurn(t, "4"))
	s.spec.Limits.Fold, s.spec.Limits.Tokens, s.spec.Limits.TurnTokens = Fold{At: 400}, 600, 40
	s.env.Delegate = func(context.Context, Delegation) (string, error) {
		return strings.Repeat("a value and another, ", 300), nil
	}
	traj, err := Run(t.Context(), s.spec, s.env)
	if err != nil {
		t.Fatal(err)
	}
	s.trainedOnce(t, traj)
	shown := traj.Turns[2].Text
	if traj.Answer != "4" || len(traj.More) != 1 || !strings.Contains(shown, "more bytes not shown]\n\n"+askForSummary) || len(traj.Tokens) > 600 {
		t.Errorf("%d rows, %d tokens, the result became %q", 1+len(traj.More), len(traj.Tokens), shown)
	}
}

// TestEqualStretches: stretches with equal beginnings are sampled with different random numbers.
func TestEqualStretches(t *testing.T) {
	s := newStage(t, endedTurn(t, delegation("first")), endedTurn(t, "None."), endedTurn(t, delegation("second")), endedTurn(t, "None."), endedTurn(t, "4"))
	s.spec.Limits.Fold = Fold{At: 1}
	if _, err := Run(t.Context(), s.spec, s.env); err != nil {
		t.Fatal(err)
	}
	second, third := s.engine.requests[2], s.engine.requests[4]
	if !slices.Equal(second.Tokens, third.Tokens) || second.Key.Root == third.Key.Root {
		t.Errorf("keys %x and %x of equal prompts: %t", second.Key.Root, third.Key.Root, slices.Equal(second.Tokens, third.Tokens))
	}
}

// TestFoldFails checks that an invalid or too long summary ends the conversation like any such
// turn. Versions may not be further apart across a fold than within a stretch.
func TestFoldFails(t *testing.T) {
	old := endedTurn(t, "Both were answered.")
	answer := endedTurn(t, "4")
	answer.version = 1
	for name, c := range map[string]struct {
		turns  []scriptedTurn
		limits Limits
		finish string // "": an error
	}{
		"call":     {[]scriptedTurn{endedTurn(t, delegation("third"))}, Limits{}, FinishFormat},
		"empty":    {[]scriptedTurn{endedTurn(t, " ")}, Limits{}, FinishFormat},
		"long":     {[]scriptedTurn{endedTurn(t, strings.Repeat("on and ", 60))}, Limits{TurnTokens: 60}, FinishLength},
		"no turns": {nil, Limits{Turns: 2}, FinishTurns},
		"versions": {[]scriptedTurn{old, answer}, Limits{}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := folded(t, 0, c.turns...)
			c.limits.Fold = s.spec.Limits.Fold
			s.spec.Limits = c.limits
			traj, err := Run(t.Context(), s.spec, s.env)
			if c.finish == "" {
				if err == nil || !strings.Contains(err.Error(), "max_lag") {
					t.Errorf("error %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if traj.Finish != c.finish || traj.FormatValid || len(traj.More) > 0 {
				t.Errorf("got finish %s and %d more rows", traj.Finish, len(traj.More))
			}
			if err := traj.Check(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestCheckFold(t *testing.T) {
	chat := newStage(t).chat
	prompt, _, err := chat.Prompt(afterFold)
	if err != nil {
		t.Fatal(err)
	}
	least := len(prompt) + 50 + 1
	if err := (Limits{TurnTokens: 50, Fold: Fold{At: least}}).CheckFold(chat); err != nil {
		t.Error(err)
	}
	if err := (Limits{TurnTokens: 50, Fold: Fold{At: least - 1}}).CheckFold(chat); err == nil || !strings.Contains(err.Error(), fmt.Sprint("above ", least-1)) {
		t.Errorf("error %v", err)
	}
	if err := (Limits{TurnTokens: 50}).CheckFold(chat); err != nil {
		t.Error(err)
	}
}
