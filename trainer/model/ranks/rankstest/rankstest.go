// Package rankstest runs parts of a test in several processes, the ranks of a group.
//
// This package is private and changes without notice; docs/library.md lists the public ones.
package rankstest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/mgrpo/mgrpo/bindings/torch"
)

const rankEnv = "MGRPO_TEST_RANK"

// Rank is one of the processes of a part.
type Rank struct {
	Group *torch.Group
	Part  string
	Dir   string // a folder that all processes can access
}

type started struct {
	Part, Dir string
	Group     torch.GroupOptions
}

// Run starts `size` processes of this test's binary, which run only a test called TestRank, and waits for all. It returns
// the result of each: nil, or an error with its output. In a verbose run it logs the output of rank 0, which contains the
// times of its parts.
func Run(t *testing.T, size int, part, dir string) []error {
	t.Helper()
	meet, err := torch.ServeRendezvous("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer meet.Close()
	const passTimeout = 3 * time.Minute // long enough for a machine that is busy with other work
	errs := make([]error, size)
	var all sync.WaitGroup
	for rank := range size {
		as, err := json.Marshal(started{part, dir, torch.GroupOptions{Rendezvous: meet.Addr(), Name: part, Bind: "127.0.0.1",
			Rank: rank, Size: size, Join: passTimeout, Timeout: passTimeout}})
		if err != nil {
			t.Fatal(err)
		}
		all.Go(func() {
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestRank$", "-test.count=1", fmt.Sprintf("-test.v=%v", testing.Verbose()))
			cmd.Env = append(os.Environ(), rankEnv+"="+string(as))
			var output bytes.Buffer
			cmd.Stdout, cmd.Stderr = &output, &output
			if err := cmd.Run(); err != nil {
				errs[rank] = fmt.Errorf("rank %d of %d: %w\n%s", rank, size, err, output.Bytes())
			} else if rank == 0 && testing.Verbose() {
				t.Logf("%s", output.Bytes())
			}
		})
	}
	all.Wait()
	return errs
}

// Pass fails the test unless every rank of a part passes.
func Pass(t *testing.T, size int, part, dir string) {
	t.Helper()
	for _, err := range Run(t, size, part, dir) {
		if err != nil {
			t.Error(err)
		}
	}
}

// Join returns the rank as which Run started this process. If Run did not start it, Join skips the test.
func Join(t *testing.T) Rank {
	t.Helper()
	text, ok := os.LookupEnv(rankEnv)
	if !ok {
		t.Skip("run in processes that other tests start")
	}
	var as started
	if err := json.Unmarshal([]byte(text), &as); err != nil {
		t.Fatal(err)
	}
	g, err := torch.OpenGroup(context.Background(), as.Group)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = g.Close() })
	return Rank{g, as.Part, as.Dir}
}
