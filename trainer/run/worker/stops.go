package worker

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/mgrpo/mgrpo/trainer/metrics"
)

// stops handles requests to end the run early, made to this process or to another worker's.
type stops struct {
	*common
	here  <-chan struct{} // closed when a clean stop of this process is requested
	ended bool            // the run ended because of a stop, here or elsewhere
}

// ErrStopped is the error of a run that ended before its last step or evaluation because a stop was requested. The run left
// a checkpoint, unless there was no step to finish or the other workers were missing.
var ErrStopped = errors.New("stopped before the end, as asked")

// askTimeout bounds the wait for a store that must receive a stop.
const askTimeout = 5 * time.Second

// errStopping means that a phase has no queries: the run ends at the version at which the phase would have begun. The main
// agent's worker begins such a phase when a stop was requested, so that all workers end at the same version.
var errStopping = errors.New("the run was asked to stop")

// passOn forwards a stop request of this process to the main agent, on any machine. If an agent has no worker at two
// checks, one lease apart, the current step might never end, so passOn abandons it.
func (st *stops) passOn(ctx context.Context, abandon context.CancelCauseFunc) {
	select {
	case <-ctx.Done():
		return
	case <-st.here:
	}
	if err := st.member.Round.AskStop(ctx); err != nil && ctx.Err() == nil {
		st.observer.Note(metrics.Warnf(st.name, metrics.TopicStop, "the others cannot be asked to stop: %v", err))
	}
	look := time.NewTicker(st.cfg.Store.Lease)
	defer look.Stop()
	for before := 0; ; {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		}
		missing, err := st.member.Round.Missing(ctx)
		if err == nil && len(missing) > 0 && before > 0 {
			st.observer.Note(metrics.Warnf(st.name, metrics.TopicStop, "no worker of %s is alive: the current step is abandoned", strings.Join(missing, ", ")))
			abandon(ErrStopped)
			return
		}
		before = len(missing)
	}
}

// requested reports whether a stop was requested.
func (st *stops) requested(ctx context.Context) (bool, error) {
	select {
	case <-st.here:
		return true, nil
	default:
	}
	by, err := st.member.Round.StopAsked(ctx)
	return by != "", err
}

// ask asks the other workers to stop. It gives up after askTimeout if the store cannot be reached, which passOn
// reports.
func (st *stops) ask(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	_ = st.member.Round.AskStop(ctx)
}

// stopInterval is the shortest time between two requests to the store for a stop at another server.
const stopInterval = time.Second

// stopPoll checks for a stop between updates: for a stop of this process at each check, for stops of others at intervals.
type stopPoll struct {
	stops       *stops
	lastRequest time.Time // the time of the last request to the store
}

// checkStop returns errStopping if a stop was requested, and the cause if ctx has ended.
func (s *stopPoll) checkStop(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	select {
	case <-s.stops.here:
		return errStopping
	default:
	}
	if time.Since(s.lastRequest) < stopInterval {
		return nil
	}
	requested, err := s.stops.requested(ctx)
	s.lastRequest = time.Now()
	if err == nil && requested {
		err = errStopping
	}
	return err
}

// unlessResumable returns a context for an update that ends with ctx, except when ctx ends with an
// error after which the run can be resumed, such as a requested stop. The update is then completed, so that its weights can be saved.
func unlessResumable(ctx context.Context) (updating context.Context, done func()) {
	updating, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		if cause := context.Cause(ctx); !Resumable(cause) {
			cancel(cause)
		}
	})
	return updating, func() { stop(); cancel(nil) }
}
