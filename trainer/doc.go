// Package trainer trains, evaluates and serves teams of language-model agents with M-GRPO (arXiv:2511.13288).
//
// Train runs the agents of a team, each with its own model, until the configured last step. It writes checkpoints and
// reports its measurements to an observer. TrainAndReport also shows them as `mgrpo train` does: on the terminal, in the
// run's folder and on the run's page. This is a whole program:
//
//	func main() {
//		trainer.ServeChild()
//		cfg, err := config.Load("team.yaml", nil)
//		if err == nil {
//			err = trainer.TrainAndReport(context.Background(), cfg, trainer.TrainOptions{}, os.Stdout)
//		}
//		if err != nil {
//			log.Fatal(err)
//		}
//	}
//
// main must call [ServeChild] first, because a run starts its own program again.
//
// To stop a run, close TrainOptions.Stop: every agent finishes the current step and writes a checkpoint, and Train returns
// ErrStopped. If the context ends, the run stops at once. TrainOptions.Resume continues it in both cases. The package does not
// handle signals: a program that should stop on Ctrl-C closes the channel when it receives os.Interrupt.
//
// Evaluate measures the accuracy of a checkpoint, Chat and Serve use one, and ServeMachine gives an agent the devices of
// a further machine. docs/library.md lists the packages that a program may import, and explains how to write tasks, tools
// and verifiers.
package trainer
