package advantages_test

import (
	"fmt"

	"gorgonia.org/tensor"

	"github.com/mgrpo/mgrpo/trainer/advantages"
	"github.com/mgrpo/mgrpo/trainer/mgrpo"
)

// Two queries of four rollouts each. All rollouts of the second query have the same reward, so it has no gradient.
func ExampleBatch() {
	rewards := tensor.New(tensor.WithShape(2, 4), tensor.WithBacking([]float64{1, 0, 0, 1, 0.5, 0.5, 0.5, 0.5}))
	a, stats, err := advantages.Batch(rewards, nil, mgrpo.DefaultConvention())
	if err != nil {
		panic(err)
	}
	fmt.Println(a.Data())
	for _, s := range stats {
		fmt.Println(s.Mean, s.Std, s.Degenerate)
	}
	// Output:
	// [1 -1 -1 1 0 0 0 0]
	// 0.5 0.5 false
	// 0.5 0 true
}
