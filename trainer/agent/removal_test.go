package agent

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/engine/policy"
)

// removal makes a conversation with two calls in a turn and a third after it, and an engine for the turns that follow a removal.
func removal(t *testing.T, turns ...scriptedTurn) (*stage, Trajectory) {
	t.Helper()
	s := newStage(t, endedTurn(t, delegation("first")+calculation("2 + 2")+delegation("second")), endedTurn(t, "Hm. "+delegation("third")), endedTurn(t, "4"))
	traj := s.run(t)
	s.engine = &scripted{t: t, turns: turns}
	s.env = Env{Policy: s.engine} // neither a tool nor a sub-agent may be called
	return s, traj
}

// TestWithoutCall removes each call of a conversation. The model reads the same tokens as before, except for the result of the
// removed call, and its turns before the last results are those of the first time.
func TestWithoutCall(t *testing.T) {
	for i, removedText := range []string{"solver[0] on first", "solver[1] on second", "solver[2] on third"} {
		s, traj := removal(t, endedTurn(t, "five"))
		request := len(traj.Tokens) - len(endedTurn(t, "4").tokens)
		got, err := WithoutCall(t.Context(), s.spec, s.env, &traj, "solver", i)
		if err != nil {
			t.Fatal(err)
		}
		before, after := s.tok.Decode(traj.Tokens[:request], false), s.tok.Decode(s.engine.requests[0].Tokens, false)
		if want := strings.Replace(before, removedText, removedAnswer, 1); after != want || !strings.Contains(before, removedText) {
			t.Errorf("without call %d the model reads\n%s\nwant\n%s", i, after, want)
		}
		if got.Answer != "five" || !got.FormatValid || got.Finish != FinishAnswer || got.SampledTurns() != 3 {
			t.Errorf("without call %d: %+v", i, got)
		}
		if err := got.Check(); err != nil {
			t.Error(err)
		}
		key := s.spec.Key
		if key.Root = policy.Root(traj.Tokens[:traj.Turns[0].To], 0); s.engine.requests[0].Key != key {
			t.Errorf("the random numbers are of %+v, want those of the conversation, %+v", s.engine.requests[0].Key, key)
		}
		if traj.Turns[2].Results[0].Text != "solver[0] on first" || traj.Answer != "4" {
			t.Error("the original conversation has changed")
		}
	}
}

// TestWithoutCallHasNoAnswer: without a call the model calls again, writes a turn that is too long, or answers with nothing. Then
// there is no valid answer.
func TestWithoutCallHasNoAnswer(t *testing.T) {
	for finish, turn := range map[string]string{FinishTurns: delegation("first"), FinishLength: "one two three four five", FinishAnswer: " "} {
		s, traj := removal(t, endedTurn(t, turn))
		if finish == FinishLength {
			s.spec.Limits.TurnTokens = 3
		}
		got, err := WithoutCall(t.Context(), s.spec, s.env, &traj, "solver", 1)
		if err != nil || got.Finish != finish || got.FormatValid || got.Answer != "" {
			t.Errorf("%s: finish %s, answer %q, valid %v, error %v", turn, got.Finish, got.Answer, got.FormatValid, err)
		}
	}
}

// TestWithoutCallRefuses: a call that was not made cannot be removed, nor can a call of a conversation without an answer or with
// several rows. An error of the engine is returned.
func TestWithoutCallRefuses(t *testing.T) {
	s, traj := removal(t)
	if _, err := WithoutCall(t.Context(), s.spec, s.env, &traj, "solver", 3); err == nil || !strings.Contains(err.Error(), "removal of call 3 of solver: the conversation made 3") {
		t.Error(err)
	}
	unanswered, folded := traj, traj
	unanswered.Finish, folded.More = FinishTurns, make([]Row, 1)
	for _, c := range []Trajectory{unanswered, folded} {
		if _, err := WithoutCall(t.Context(), s.spec, s.env, &c, "solver", 0); err == nil {
			t.Errorf("finish %s with %d more rows is not refused", c.Finish, len(c.More))
		}
	}
	lost := errors.New("lost")
	s, traj = removal(t, scriptedTurn{err: lost})
	if _, err := WithoutCall(t.Context(), s.spec, s.env, &traj, "solver", 0); !errors.Is(err, lost) || !strings.Contains(err.Error(), "q7/3") {
		t.Error(err)
	}
	if !slices.ContainsFunc(traj.Turns, func(turn Turn) bool { return turn.Results != nil }) {
		t.Error("the conversation has no results")
	}
}
