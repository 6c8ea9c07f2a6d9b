package trainer

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/mgrpo/mgrpo/trainer/agent/tool/sandbox"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/engine/launch"
	"github.com/mgrpo/mgrpo/trainer/metrics"
	"github.com/mgrpo/mgrpo/trainer/run/assemble"
)

// ServeChild checks whether a run started this process as one of its children. If so, it does the child's work and
// does not return; otherwise it returns at once. A run starts its own program again in two cases. The tool python
// runs each program in a sandbox. An agent with several devices has a process, called a follower, for each device
// except the first. A program that trains or evaluates calls ServeChild first in main, and in TestMain.
func ServeChild() {
	sandbox.Serve()
	assemble.ServeFollower()
}

// listenForMachines opens a listener for the further machines of each agent here that has several, and adds it to machines.
// With further machines, o.Stop becomes a channel that closes when a stop is requested here or at any of them. Closing done ends the
// forwarding of the earlier o.Stop.
func (o *TrainOptions) listenForMachines(cfg *config.Config, machines map[string]*launch.Machines, done <-chan struct{}) error {
	here, stop := o.Stop, make(chan struct{})
	requestStop := sync.OnceFunc(func() { close(stop) })
	for _, name := range agentsOf(cfg, o.Agents) {
		a := cfg.Agent(name)
		if a == nil || a.Machines.Count <= 1 {
			continue
		}
		settings, err := machinesOf(cfg, a, o.Observer)
		if err != nil {
			return err
		}
		var first sync.Once
		settings.Stop = func(machine int) {
			first.Do(func() { settings.Note(fmt.Sprintf("machine %d was asked to stop the run", machine)) })
			requestStop()
		}
		if machines[name], err = launch.Listen(settings); err != nil {
			return err
		}
	}
	if len(machines) == 0 {
		return nil
	}
	o.Stop = stop
	go func() {
		select {
		case <-here:
			requestStop()
		case <-done:
		}
	}()
	return nil
}

// dismissMachines sends the end of the run to further machines.
func dismissMachines(ctx context.Context, machines map[string]*launch.Machines, err error) {
	end := launch.RunEnd{}
	if err != nil && !errors.Is(err, ErrRunComplete) {
		end = launch.RunEnd{Why: err.Error(), Stopped: Resumable(err) || ctx.Err() != nil}
	}
	for _, m := range machines {
		m.Close(end)
	}
}

func machinesOf(cfg *config.Config, a *config.Agent, o metrics.Observer) (launch.ListenOptions, error) {
	key, err := cfg.MachinesKey(a)
	return launch.ListenOptions{Agent: a.Name, Count: a.Machines.Count, Devices: a.OnMachine(), Address: a.Machines.Address, Key: key,
		Lease: cfg.Store.Lease, Timeout: cfg.Store.Timeout,
		Note: func(text string) { o.Note(metrics.Infof(a.Name, metrics.TopicWaiting, "%s", text)) }}, err
}

// MachineOptions are the options of ServeMachine.
type MachineOptions struct {
	Agent    string           // the agent that gets the devices
	Machine  int              // this machine's number among the agent's further machines, counted from 1
	Stop     <-chan struct{}  // closed to ask the worker to stop the run; may be nil
	Observer metrics.Observer // receives notes; may be nil
}

// ServeMachine offers the devices of this machine, which is not the worker's, to the worker of an agent until the run is
// over. It needs no store. Resumable also reports for its error whether the same command can continue.
func ServeMachine(ctx context.Context, cfg *config.Config, opt MachineOptions) error {
	a, err := cfg.OfMachine(opt.Machine, opt.Agent)
	if err != nil {
		return err
	}
	settings, err := machinesOf(cfg, a, observed(opt.Observer))
	if err != nil {
		return err
	}
	err = launch.ServeMachine(ctx, launch.ServeOptions{ListenOptions: settings, Machine: opt.Machine, HiddenEnv: cfg.SecretEnv(), Asked: opt.Stop})
	if errors.Is(err, launch.ErrStopped) {
		return ErrStopped
	}
	return err
}
