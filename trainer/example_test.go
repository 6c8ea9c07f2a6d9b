package trainer_test

import (
	"context"
	"fmt"
	"log"
	"os"

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
