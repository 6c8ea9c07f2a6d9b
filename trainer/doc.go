// Package trainer trains, evaluates and serves teams of language-model agents with M-GRPO (arXiv:2511.13288).
//
// Train runs the agents of a team, each with a model of its own, until the last step that the configuration asks for. It
// writes checkpoints and reports its measurements to an observer. This is a whole program:
//
//	func main() {
//		trainer.ServeChild()
//		cfg, err := config.Load("team.yaml", nil)
//		if err == nil {
//			err = trainer.Train(context.Background(), cfg, trainer.Options{Observer: metrics.NewConsole(os.Stdout, metrics.ConsoleOptions{})})
//		}
//		if err != nil {
//			log.Fatal(err)
//		}
//	}
//
// ServeChild comes first in main, because a run starts its own program again: as a sandbox for the tools that execute code,
// and as a follower for each device of an agent except the first.
//
// Evaluate measures the accuracy of a checkpoint, Chat and Serve use one, and ServeMachine gives an agent the devices of
// a further machine. docs/library.md lists the packages that a program may import, and explains how to write tasks, tools
// and verifiers.
package trainer
