// Package store measures the store that agents share: the network traffic of one rollout and of one step, the time of its calls,
// and the load that one Redis sustains.
package store

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/mgrpo/mgrpo/bench/measure"
	"github.com/mgrpo/mgrpo/trainer/cgroup"
	"github.com/mgrpo/mgrpo/trainer/team/store/redisserver"
)

// Sizes of the texts that agents exchange: a sub-task and its answer.
const taskBytes, answerBytes = 200, 100

// Options holds the settings of one run of the suite.
type Options struct {
	Commit string   // of this program
	Client []string // command that runs Client on its standard input and output
	Quick  bool     // a short run that only checks that everything works
	Log    func(format string, args ...any)
	Save   func(*Results) error
}

// Load describes the traffic of one measurement.
type Load struct {
	TLS              bool    `json:"tls"`
	Workers          int     `json:"workers"`          // simulated, in addition to the main agent's
	Clients          int     `json:"client_processes"` // one for the workers, and one for the main agent's
	Threads          int     `json:"threads"`          // GOMAXPROCS of each
	Rate             float64 `json:"rate"`             // invocations due in a second
	Seconds          float64 `json:"seconds"`
	PhaseInvocations int64   `json:"phase_invocations"`
	TaskBytes        int     `json:"task_bytes"`
	AnswerBytes      int     `json:"answer_bytes"`
}

// LoadResult is the result of a load.
type LoadResult struct {
	Load
	Invocations  int       `json:"invocations"`
	PerSecond    float64   `json:"per_second"`     // answered, over the whole time
	ExchangeP50  float64   `json:"exchange_p50_s"` // from an invocation's due time to its answer
	ExchangeP99  float64   `json:"exchange_p99_s"`
	ExchangeMax  float64   `json:"exchange_max_s"`
	RedisCores   float64   `json:"redis_cores"` // processor time over time
	ClientCores  float64   `json:"client_cores"`
	RedisVersion string    `json:"redis_version"`
	RedisMemory  []float64 `json:"redis_memory_bytes"` // used_memory, sampled at equal intervals
}

// Results holds the results of the suite, as in a file of bench/results.
type Results struct {
	Suite      string          `json:"suite"`
	Date       string          `json:"date"`
	Machine    measure.Machine `json:"machine"`
	LoadBefore float64         `json:"load_before"`
	Settings   []string        `json:"redis_settings"`
	Costs      []Cost          `json:"costs"`
	Loads      []LoadResult    `json:"loads"`
}

// Run measures everything, without TLS and with it.
func Run(ctx context.Context, o Options) (*Results, error) {
	r := &Results{Suite: "store", Date: time.Now().UTC().Format(time.DateTime), LoadBefore: measure.LoadAverage(), Settings: redisserver.Durable}
	var err error
	if r.Machine, err = measure.Examine(o.Commit, "cpu", cgroup.UsableCores().N); err != nil {
		return r, err
	}
	for _, withTLS := range []bool{false, true} {
		costs, err := costs(ctx, withTLS)
		if err != nil {
			return r, err
		}
		r.Costs = append(r.Costs, costs...)
	}
	for _, withTLS := range []bool{false, true} {
		for _, l := range loads(withTLS, o.Quick) {
			b, err := applyLoad(ctx, l, o.Client)
			if err != nil {
				return r, err
			}
			r.Loads = append(r.Loads, b)
			o.Log("%s", b)
			if err := o.Save(r); err != nil {
				return r, err
			}
		}
	}
	return r, nil
}

// loads returns one load for each rate. The load with the highest rate is the longest.
func loads(withTLS, quick bool) (all []Load) {
	workers, rates, seconds := 999, []float64{2000, 5000, 10000}, 60.0
	if quick {
		workers, rates, seconds = 4, []float64{50, 100}, 1
	}
	for _, rate := range rates {
		l := Load{TLS: withTLS, Workers: workers, Clients: 2, Threads: cgroup.UsableCores().N, Rate: rate, Seconds: seconds,
			PhaseInvocations: int64(2 * rate), TaskBytes: taskBytes, AnswerBytes: answerBytes}
		if rate < slices.Max(rates) {
			l.Seconds /= 3
		}
		all = append(all, l)
	}
	return all
}

// applyLoad starts a server, puts a load on it, and returns the measurements.
func applyLoad(ctx context.Context, l Load, client []string) (LoadResult, error) {
	b := LoadResult{Load: l}
	s, err := startServer(l.TLS)
	if err != nil {
		return b, err
	}
	defer s.stop()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	agents := []string{"main"}
	for i := range l.Workers {
		agents = append(agents, fmt.Sprintf("sub-%d", i))
	}
	clients := []*clientProcess{
		startClient(ctx, client, job{Store: s.options, Agents: agents, Members: agents[1:], Load: l}),
		startClient(ctx, client, job{Store: s.options, Agents: agents, Members: agents[:1], Load: l}),
	}
	stop, watched := make(chan struct{}), make(chan error, 1)
	var seen []sample
	go func() {
		var err error
		seen, err = watch(ctx, s, l.Seconds/20, stop)
		watched <- err
	}()
	var errs []error
	var asked report
	for _, c := range clients {
		r, err := c.wait()
		if err != nil {
			errs = append(errs, err)
			cancel()
		}
		b.ClientCores += r.CPU
		if len(r.Exchange) > 0 {
			asked = r
		}
	}
	close(stop)
	if err := errors.Join(append(errs, <-watched)...); err != nil {
		return b, err
	}
	b.fill(asked, seen)
	return b, nil
}

// fill adds the report of the main agent's client and the samples of the server taken meanwhile.
func (b *LoadResult) fill(r report, seen []sample) {
	seconds := r.Ended.Sub(r.Begun).Seconds()
	b.Invocations = len(r.Exchange)
	b.PerSecond = float64(b.Invocations) / seconds
	b.ClientCores /= seconds
	b.ExchangeP50, b.ExchangeP99, b.ExchangeMax = measure.Quantile(r.Exchange, 0.5), measure.Quantile(r.Exchange, 0.99), measure.Quantile(r.Exchange, 1)
	seen = slices.DeleteFunc(seen, func(s sample) bool { return s.at.Before(r.Begun) || s.at.After(r.Ended) })
	for _, s := range seen {
		b.RedisMemory = append(b.RedisMemory, s.memory)
		b.RedisVersion = s.version
	}
	if n := len(seen) - 1; n > 0 {
		b.RedisCores = (seen[n].cpu - seen[0].cpu) / seen[n].at.Sub(seen[0].at).Seconds()
	}
}

// sample holds the server's figures at one time.
type sample struct {
	at          time.Time
	memory, cpu float64 // bytes, seconds
	version     string
}

// watch samples the server at intervals of `every` seconds until stop is closed.
func watch(ctx context.Context, s *server, every float64, stop <-chan struct{}) (seen []sample, err error) {
	tick := time.NewTicker(time.Duration(every * float64(time.Second)))
	defer tick.Stop()
	for {
		info, err := s.info(ctx)
		if err != nil {
			return nil, err
		}
		seen = append(seen, sample{time.Now(), number(info, "used_memory"), number(info, "used_cpu_user") + number(info, "used_cpu_sys"),
			info["redis_version"]})
		select {
		case <-tick.C:
		case <-stop:
			return seen, nil
		}
	}
}

// clientProcess is a process that runs Client.
type clientProcess struct {
	cmd *exec.Cmd
	out bytes.Buffer
	err error
}

func startClient(ctx context.Context, command []string, j job) *clientProcess {
	c := &clientProcess{cmd: exec.CommandContext(ctx, command[0], command[1:]...)}
	in, err := json.Marshal(j)
	c.cmd.Stdin, c.cmd.Stdout, c.cmd.Stderr = bytes.NewReader(in), &c.out, os.Stderr
	c.err = errors.Join(err, c.cmd.Start())
	return c
}

func (c *clientProcess) wait() (r report, err error) {
	if c.err != nil {
		return r, c.err
	}
	if err := c.cmd.Wait(); err != nil {
		return r, fmt.Errorf("a client process: %w", err)
	}
	return r, json.Unmarshal(c.out.Bytes(), &r)
}

func (b LoadResult) String() string {
	return fmt.Sprintf("%d workers in %d processes, TLS %v, %.0f/s due: %.0f/s, exchange p50 %s p99 %s max %s, Redis %.2f cores, clients %.2f cores",
		b.Workers, b.Clients, b.TLS, b.Rate, b.PerSecond, measure.Seconds(b.ExchangeP50), measure.Seconds(b.ExchangeP99),
		measure.Seconds(b.ExchangeMax), b.RedisCores, b.ClientCores)
}

// Table returns the results as text.
func (r *Results) Table() string {
	var out strings.Builder
	m := r.Machine
	fmt.Fprintf(&out, "%s, %d cores, commit %s, load %.2f, redis-server %s\n\n", m.CPU, m.Cores, m.Commit, r.LoadBefore, strings.Join(r.Settings, " "))
	w := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "what\tTLS\t"+strings.Join(CostHead, "\t"))
	for _, c := range r.Costs {
		fmt.Fprintln(w, strings.Join(append([]string{c.What, yes(c.TLS)}, c.Cells()...), "\t"))
	}
	fmt.Fprintln(w, "\nworkers\tprocesses\tTLS\t"+strings.Join(LoadHead, "\t"))
	for _, b := range r.Loads {
		fmt.Fprintf(w, "%d\t%d\t%s\t%s\n", b.Workers, b.Clients, yes(b.TLS), strings.Join(b.Cells(), "\t"))
	}
	w.Flush()
	return out.String()
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// CostHead and LoadHead name the columns that Cells of a Cost and of a LoadResult return.
var (
	CostHead = []string{"round trips", "bytes up", "bytes down", "p50", "p99"}
	LoadHead = []string{"due/s", "answered/s", "exchange p50", "p99", "max", "Redis cores", "client cores", "memory min", "max", "p99 < 20 ms"}
)

// Cells returns a cost's numbers as text; "" for numbers that were not measured.
func (c Cost) Cells() []string {
	if c.RoundTrips == 0 {
		return []string{"", "", "", measure.Seconds(c.P50), measure.Seconds(c.P99)}
	}
	return []string{fmt.Sprintf("%.1f", c.RoundTrips), fmt.Sprintf("%.0f", c.Up), fmt.Sprintf("%.0f", c.Down), "", ""}
}

// Cells returns a load's numbers as text.
func (b LoadResult) Cells() []string {
	low, high := b.memory()
	return []string{fmt.Sprintf("%.0f", b.Rate), fmt.Sprintf("%.0f", b.PerSecond), measure.Seconds(b.ExchangeP50), measure.Seconds(b.ExchangeP99),
		measure.Seconds(b.ExchangeMax), fmt.Sprintf("%.2f", b.RedisCores), fmt.Sprintf("%.2f", b.ClientCores), measure.Bytes(low), measure.Bytes(high),
		yes(b.Prompt())}
}

// Targets for one Redis: the number of invocations a second, and the time within which 99 of 100 are answered. Memory must not grow.
const (
	TargetRate = 10000
	TargetP99  = 20e-3 // seconds
)

// Prompt reports whether 99 of 100 invocations were answered within TargetP99.
func (b LoadResult) Prompt() bool { return b.ExchangeP99 < TargetP99 }

// Flat reports whether the server's memory stopped growing: the last third of a load has at most a tenth more than the third before.
func (b LoadResult) Flat() bool {
	n := len(b.RedisMemory) / 3
	return n > 0 && slices.Max(b.RedisMemory[2*n:]) <= 1.1*slices.Max(b.RedisMemory[n:2*n])
}

// memory returns the least and the most memory of the server in the second half of the load, in bytes. Phases begin and end in that half.
func (b LoadResult) memory() (low, high int64) {
	half := b.RedisMemory[len(b.RedisMemory)/2:]
	if len(half) == 0 {
		return 0, 0
	}
	return int64(slices.Min(half)), int64(slices.Max(half))
}
