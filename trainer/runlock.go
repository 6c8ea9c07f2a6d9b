package trainer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/mgrpo/mgrpo/trainer/internal/durable"
	"github.com/mgrpo/mgrpo/trainer/show/metrics"
)

// lockFolder locks a folder against other processes until release is called; what names the folder in errors. The
// returned context ends if another process takes the folder over because it considered this one dead. A folder in which
// this process cannot write is not locked.
func lockFolder(parent context.Context, what, dir string, s durable.Sharing, o metrics.Observer) (ctx context.Context, release func() error, err error) {
	ctx, cancel := context.WithCancelCause(parent)
	waiting := func(why string) { o.Note(metrics.Infof("", metrics.TopicWaiting, "%s %s", what, why)) }
	l, err := durable.AcquireLock(ctx, dir, s, filepath.Base(os.Args[0]), waiting, func(err error) { cancel(fmt.Errorf("%s %w", what, err)) })
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) {
		return ctx, func() error { cancel(nil); return nil }, nil
	}
	if err != nil {
		cancel(nil)
		return parent, nil, fmt.Errorf("%s %w", what, err)
	}
	return ctx, func() error { cancel(nil); return l.Release() }, nil
}
