package phases

import (
	"fmt"

	"github.com/mgrpo/mgrpo/bench/measure"
)

func faster(peer string, by float64) measure.Target {
	return measure.Target{Kind: measure.Faster, Peer: peer, Bound: by, Text: fmt.Sprintf("at least %g× as fast as %s", by, peer)}
}

func nearFloor(share float64) measure.Target {
	return measure.Target{Kind: measure.Floor, Bound: 1 / share, Text: fmt.Sprintf("at most %.2f× the floor (%.0f %% of it)", 1/share, 100*share)}
}

func smaller(peer string, share float64) measure.Target {
	return measure.Target{Kind: measure.Memory, Peer: peer, Bound: share, Text: fmt.Sprintf("at most %g× the peak memory of %s", share, peer)}
}
