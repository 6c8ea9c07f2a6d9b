package doctor

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/mgrpo/mgrpo/bindings/kernels"
	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/cgroup"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/run/assemble"
	"github.com/mgrpo/mgrpo/trainer/run/memory"
	"github.com/mgrpo/mgrpo/trainer/team/store"
)

func libTorch() Finding { return Finding{OK, "LibTorch", torch.Version(), ""} }

func processor() Finding {
	isa := kernels.ISA()
	f := Finding{OK, "CPU", fmt.Sprintf("%s, %s; kernels use %s", cgroup.UsableCores(), torch.CPUFeatures(), isa), ""}
	if isa == "portable" {
		f.Status, f.Advice = Warn, "without AVX2 training on this CPU is many times slower"
		if os.Getenv("MGRPO_CPU_ISA") != "" {
			f.Advice += "; MGRPO_CPU_ISA selects this"
		}
	}
	return f
}

// redisPatience is the longest time that a store may take to answer.
const redisPatience = 10 * time.Second

// redis checks that the configured store answers. Without store.url it looks for a redis-server on this machine.
func redis(ctx context.Context, cfg *config.Config) Finding {
	if cfg == nil || cfg.Store.URL == "" {
		if path, err := exec.LookPath("redis-server"); err == nil {
			return Finding{OK, "Redis", path + "; `mgrpo train` without store.url does not need one", ""}
		}
		return Finding{OK, "Redis", "there is no redis-server here; `mgrpo train` without store.url does not need one, but workers on several servers do", ""}
	}
	where := cfg.Store.URL
	if u, err := url.Parse(where); err == nil {
		where = u.Redacted()
	}
	fail := func(err error) Finding {
		return Finding{Fail, "Redis", fmt.Sprintf("%s: %v", where, err),
			"start the server, or correct the store section; without it all agents share one process"}
	}
	options, err := assemble.StoreOptions(cfg)
	if err != nil {
		return fail(err)
	}
	ctx, cancel := context.WithTimeout(ctx, redisPatience)
	defer cancel()
	s, err := store.Open(ctx, options)
	if err != nil {
		return fail(err)
	}
	if err := s.Close(); err != nil {
		return fail(err)
	}
	if options.AllowVolatile {
		return Finding{Warn, "Redis", where + " answers; its persistence was not checked (store.allow_volatile)",
			"set appendonly yes and maxmemory-policy noeviction"}
	}
	return Finding{OK, "Redis", where + " answers, is new enough, and has appendonly yes and noeviction; appendfsync, which must be always, cannot be " +
		"read with a worker's rights", ""}
}

func hostMemory() Finding {
	m, err := cgroup.HostMemory()
	if err != nil {
		return Finding{Warn, "memory", "unknown: " + err.Error(), "the agents' needs cannot be compared with the memory of this machine"}
	}
	return Finding{OK, "memory", fmt.Sprintf("%s, %s available", memory.Size(m.Total), memory.Size(m.Available)), ""}
}

// disk compares the free space of the disk of dir, which may not exist yet, with the needed bytes.
func disk(dir string, needed int64) Finding {
	var stat syscall.Statfs_t
	if at, err := nearestParent(dir, func(at string) error { return syscall.Statfs(at, &stat) }); err != nil {
		return Finding{Fail, "disk", fmt.Sprintf("the free space of %s is unknown: %s: %v", dir, at, err), "choose another run.dir"}
	}
	free := int64(stat.Bavail) * stat.Bsize
	f := Finding{OK, "disk", fmt.Sprintf("%s free for %s", memory.Size(free), dir), ""}
	if needed > 0 {
		f.Found += fmt.Sprintf("; checkpoints take up to %s", memory.Size(needed))
	}
	if free < needed {
		f.Status, f.Found = Fail, "the disk of run.dir is too small: "+f.Found
		f.Advice = "free some space, choose another run.dir, lower run.keep, or set run.save_moments to false (docs/config.md)"
	}
	return f
}

// checkWritable returns an error if files cannot be written in a folder, which may not exist yet.
func checkWritable(dir string) error {
	const write = 2 | 1 // W_OK | X_OK
	at, err := nearestParent(dir, func(at string) error {
		info, err := os.Stat(at)
		if err == nil && !info.IsDir() {
			return syscall.ENOTDIR
		}
		if err != nil {
			return errors.Unwrap(err) // without the operation and the path
		}
		return syscall.Access(at, write)
	})
	if err != nil {
		return fmt.Errorf("%s cannot be written to: %s: %w", dir, at, err)
	}
	return nil
}

// nearestParent calls ask for a folder. If the folder does not exist yet, it calls ask for one parent after another until one exists. It
// returns the last folder for which it called ask. A link to a folder that does not exist is an error.
func nearestParent(dir string, ask func(at string) error) (at string, err error) {
	for at, err = dir, ask(dir); errors.Is(err, syscall.ENOENT) && filepath.Dir(at) != at; err = ask(at) {
		if _, link := os.Lstat(at); link == nil {
			return at, errors.New("it is a link to a folder that does not exist")
		}
		at = filepath.Dir(at)
	}
	return at, err
}

// oneLine puts the text of an error that spans several lines, such as a list of mistakes, on one line.
func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }
