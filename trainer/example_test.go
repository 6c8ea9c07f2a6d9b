package trainer_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/signal"

	"github.com/mgrpo/mgrpo/trainer"
	"github.com/mgrpo/mgrpo/trainer/config"
)

// A complete program that trains the team of a configuration, or resumes its training.
func ExampleTrainAndReport() {
	trainer.ServeChild() // first in main
	cfg, err := config.Load("team.yaml", []string{"run.steps=100"})
	if err != nil {
		log.Fatal(err)
	}
	err = trainer.TrainAndReport(context.Background(), cfg, trainer.TrainOptions{Resume: true}, os.Stdout)
	switch {
	case trainer.Resumable(err):
		log.Fatalf("%v; start the program again to continue", err)
	case err != nil:
		log.Fatal(err)
	}
}

// Prints the accuracy of the newest checkpoint on the held-out questions.
func ExampleEvaluate() {
	cfg, err := config.Load("team.yaml", nil)
	if err != nil {
		log.Fatal(err)
	}
	e, err := trainer.Evaluate(context.Background(), cfg, trainer.EvaluateOptions{})
	if err != nil {
		log.Fatal(err)
	}
	accuracy, err := e.Accuracy()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(e.Checkpoint, accuracy)
}

// Serves the agents of the newest checkpoint as an OpenAI endpoint until Ctrl-C.
func ExampleServe() {
	cfg, err := config.Load("team.yaml", nil)
	if err != nil {
		log.Fatal(err)
	}
	mux := http.NewServeMux()
	go func() { log.Fatal(http.ListenAndServe("127.0.0.1:8000", mux)) }()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	opt := trainer.ServeOptions{Token: os.Getenv("API_KEY"), Ready: func(stepDir string, agents []trainer.ServedAgent) {
		fmt.Println(stepDir, "at http://127.0.0.1:8000/v1 for", agents[0].Name)
	}}
	if err := trainer.Serve(ctx, cfg, mux, opt); err != nil {
		log.Fatal(err)
	}
}

// Asks the team of the newest checkpoint a question, and prints the messages between the agents.
func ExampleChat() {
	cfg, err := config.Load("team.yaml", nil)
	if err != nil {
		log.Fatal(err)
	}
	err = trainer.Chat(context.Background(), cfg, trainer.CheckpointOptions{}, func(ctx context.Context, team *trainer.TeamChat) error {
		answer, err := team.Ask(ctx, "How many minutes are in three hours?", func(m trainer.Message) { fmt.Println(m.From, "to", m.To+":", m.Text) })
		fmt.Println(answer)
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
}
