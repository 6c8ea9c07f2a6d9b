// Command gateway measures the cost of conversations that a user's program holds. It plays many conversations at once with one engine
// and a tiny model: by agent.Run in the process, and by clients over HTTP through the gateway. It checks that both sample the same
// tokens. In the root of the repository:
//
//	eval "$(make env)"; go run ./bench/gateway -out bench/results/gateway.json
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"time"

	"github.com/mgrpo/mgrpo/bench/measure"
	"github.com/mgrpo/mgrpo/trainer/cgroup"
)

// Results is the content of the file. Speeds are in tokens a second, in the order of the runs.
type Results struct {
	What          string          `json:"what"`
	Date          string          `json:"date"`
	Machine       measure.Machine `json:"machine"`
	LoadBefore    float64         `json:"load_before"`
	Conversations int             `json:"conversations"` // at once
	Turns         int             `json:"turns"`         // of each conversation
	TurnTokens    int             `json:"turn_tokens"`
	Width         int             `json:"width"` // of the model, a Llama with SmolLM2's tokenizer
	Layers        int             `json:"layers"`
	Tokens        int             `json:"tokens"` // sampled in a run
	Own           []float64       `json:"own"`
	Gateway       []float64       `json:"gateway"`
	Ratio         float64         `json:"ratio"` // median of gateway/own over the pairs of runs
	Target        float64         `json:"target"`
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "gateway: %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	out := flag.String("out", "", "file for the results; absent: they are only printed")
	r := Results{What: "the same conversations with one engine, held by agent.Run and through the gateway over HTTP: tokens a second",
		Date: time.Now().UTC().Format(time.DateOnly), LoadBefore: measure.LoadAverage(), Conversations: 200, Turns: 3, Layers: 2,
		Target: 0.9}
	flag.IntVar(&r.TurnTokens, "tokens", 64, "tokens of a turn")
	flag.IntVar(&r.Width, "width", 256, "width of the model")
	pairs := flag.Int("pairs", 5, "runs of each kind")
	flag.Parse()
	threads := cgroup.UsableCores().N
	if r.Machine, err = measure.Examine(measure.Commit(ctx), "cpu", threads); err != nil {
		return err
	}
	s, err := openStage(ctx, r, threads)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close(context.WithoutCancel(ctx))) }()
	var ratios []float64
	for pair := range *pairs + 1 {
		own, through, err := s.pair(ctx, int64(pair))
		if err != nil {
			return err
		}
		if pair == 0 {
			continue // warms up
		}
		r.Tokens = own.tokens
		r.Own, r.Gateway = append(r.Own, own.speed()), append(r.Gateway, through.speed())
		ratios = append(ratios, through.speed()/own.speed())
		fmt.Printf("own %.0f tokens/s, through the gateway %.0f, ratio %.3f\n", own.speed(), through.speed(), ratios[len(ratios)-1])
	}
	r.Ratio = measure.Quantile(ratios, 0.5)
	fmt.Printf("%d conversations, %d tokens a run: ratio %.3f, target %.1f\n", r.Conversations, r.Tokens, r.Ratio, r.Target)
	if *out == "" {
		return nil
	}
	return measure.WriteFile(*out, r)
}
