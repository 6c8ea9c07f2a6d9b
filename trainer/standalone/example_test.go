package standalone_test

import (
	"context"
	"fmt"
	"log"

	"github.com/mgrpo/mgrpo/trainer/engine/policy"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer"
	"github.com/mgrpo/mgrpo/trainer/standalone"
)

// Asks an agent of a checkpoint, or any model of a supported family.
func ExampleCheckpoint_Reply() {
	ctx := context.Background()
	c, err := standalone.Open(ctx, "runs/svamp/checkpoints/step-000060/solver", standalone.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)
	engine, err := c.OpenEngine(ctx, 1)
	if err != nil {
		log.Fatal(err)
	}
	chat := tokenizer.Chat{Messages: tokenizer.Messages(tokenizer.Message{Role: "user", Content: "How much is 17 * 23?"})}
	text, turn, err := c.Reply(ctx, engine, chat, policy.Sampling{Temperature: 1, MaxNew: 256}, 1)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(text, turn.Finish)
}
