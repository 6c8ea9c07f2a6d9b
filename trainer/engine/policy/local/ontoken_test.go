package local

import (
	"context"
	"slices"
	"sync"
	"testing"
)

// TestOnToken: OnToken receives every token of its own request, in order, while other sequences are in flight.
func TestOnToken(t *testing.T) {
	e := testEngine(t, testModel(t, 1), Options{Slots: 5})
	var wg sync.WaitGroup
	for _, r := range requests() {
		wg.Go(func() {
			var seen []int32
			r.OnToken = func(id int32) { seen = append(seen, id) }
			c, err := e.Generate(context.Background(), r)
			if err != nil || !slices.Equal(seen, c.Tokens) {
				t.Errorf("%v: OnToken received %v, want %v (%v)", r.Key, seen, c.Tokens, err)
			}
		})
	}
	wg.Wait()
}
