package worker

import (
	"errors"
	"fmt"
	"testing"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/engine/launch"
	"github.com/mgrpo/mgrpo/trainer/engine/policy/remote"
	"github.com/mgrpo/mgrpo/trainer/team/store"
)

// TestClassify: each error, also when wrapped or joined with another, has the class that decides whether the run continues, and how.
func TestClassify(t *testing.T) {
	for name, test := range map[string]struct {
		err       error
		want      ErrorClass
		resumable bool
	}{
		"none":                         {nil, Fatal, false},
		"unknown":                      {errors.New("disk full"), Fatal, false},
		"the team failed":              {&store.StopError{Agent: "planner", Kind: store.Failure}, Fatal, false},
		"a machine's run failed":       {&launch.RunEndedError{}, Fatal, false},
		"a stop here":                  {ErrStopped, Interrupted, true},
		"a stop elsewhere":             {&store.StopError{Agent: "planner", Kind: store.Asked}, Interrupted, true},
		"a stop at another machine":    {&launch.RunEndedError{RunEnd: launch.RunEnd{Stopped: true}}, Interrupted, true},
		"a late worker":                {&store.TimeoutError{}, Interrupted, true},
		"a sampling server":            {&remote.UnreachableError{}, Interrupted, true},
		"a GPU":                        {&torch.LostError{Device: "cuda:0"}, Interrupted, true},
		"a machine":                    {&launch.AbsentError{}, Interrupted, true},
		"the team goes back":           {&store.StopError{Agent: "planner", Kind: store.Rewind}, RoundOver, false},
		"replaced":                     {&store.FencedError{Agent: "planner", Now: "2"}, RoundOver, false},
		"another value":                {&store.ConflictError{}, ValueDiffers, false},
		"a follower":                   {&launch.LostError{}, FollowerLost, true},
		"a follower whose GPU is lost": {errors.Join(&launch.LostError{}, &torch.LostError{Device: "cuda:0"}), FollowerLost, true},
	} {
		err := test.err
		if err != nil {
			err = errors.Join(fmt.Errorf("agent planner: %w", err), errors.New("closing: disk full"))
		}
		if got := Classify(err); got != test.want || Resumable(err) != test.resumable {
			t.Errorf("%s: class %d, resumable %v; want %d, %v", name, got, Resumable(err), test.want, test.resumable)
		}
	}
}
