package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// handleSignals lets SIGINT and SIGTERM end a training in two ways. The first signal closes stop: all workers of the run
// finish the current step and write a checkpoint. The second cancels the context; the third ends the process, as is the
// signal's default. done restores the default.
func handleSignals(parent context.Context) (ctx context.Context, stop <-chan struct{}, done func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(parent)) // parent ends with the first signal
	early := parent.Err() != nil                                     // a signal came already
	signals, stopRequests := make(chan os.Signal, 2), make(chan struct{})
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
		fmt.Fprintln(os.Stderr, "\nmgrpo: stopping with a checkpoint after the current step, evaluation or cold-start update; press again to stop at once")
		close(stopRequests)
		select {
		case <-signals:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, stopRequests, cancel
}
