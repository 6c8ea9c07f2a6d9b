package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// untilStopped gives a training the two ways to end it from outside. The first SIGINT or SIGTERM closes stop: the step
// in flight is finished and a checkpoint written, by all workers of the run. The second cancels the context; the third
// ends the process, as is the signal's default. done restores the default of both signals.
func untilStopped(parent context.Context) (ctx context.Context, stop <-chan struct{}, done func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(parent)) // parent ends with the first signal
	early := parent.Err() != nil                                     // it came already
	signals, asked := make(chan os.Signal, 2), make(chan struct{})
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		defer signal.Stop(signals)
		if !early {
			select {
			case <-signals:
			case <-ctx.Done():
				return
			}
		}
		fmt.Fprintln(os.Stderr, "\nmgrpo: stopping after the step, the evaluation or the update of a cold start that is in flight, with a checkpoint; again to stop at once")
		close(asked)
		select {
		case <-signals:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, asked, cancel
}
