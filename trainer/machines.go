package trainer

import (
	"context"
	"errors"
	"fmt"

	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/launch"
	"github.com/mgrpo/mgrpo/trainer/metrics"
)

// listenForMachines waits, for each agent here that has several machines, for the further ones, as long as the run goes on.
func listenForMachines(cfg *config.Config, opt Options) (map[string]*launch.Machines, error) {
	listening := map[string]*launch.Machines{}
	for _, name := range opt.agents(cfg) {
		a := cfg.Agent(name)
		if a == nil || a.Machines.Count <= 1 {
			continue
		}
		settings, err := machinesOf(cfg, a, opt.Observer)
		if err == nil {
			listening[name], err = launch.Listen(settings)
		}
		if err != nil {
			return listening, err
		}
	}
	return listening, nil
}

// dismissMachines tells further machines how the run ended.
func (o Options) dismissMachines(ctx context.Context, err error) {
	over := launch.Over{}
	if err != nil && !errors.Is(err, ErrFinished) {
		over = launch.Over{Why: err.Error(), Stopped: Resumable(err) || ctx.Err() != nil}
	}
	for _, m := range o.machines {
		m.Close(over)
	}
}

func machinesOf(cfg *config.Config, a *config.Agent, o metrics.Observer) (launch.MachineSettings, error) {
	key, err := cfg.MachinesKey(a)
	return launch.MachineSettings{Agent: a.Name, Count: a.Machines.Count, Devices: a.OnMachine(), Address: a.Machines.Address, Key: key,
		Lease: cfg.Store.Lease, Timeout: cfg.Store.Timeout,
		Note: func(text string) { o.Note(metrics.Infof(a.Name, metrics.TopicWaiting, "%s", text)) }}, err
}

// Lend has the worker of an agent use the devices of this machine, which is not the one of the worker, until the run is over. It needs
// no store. Resumable says of its error, too, whether the same command goes on.
func Lend(ctx context.Context, cfg *config.Config, agent string, machine int, o metrics.Observer) error {
	a := cfg.Agent(agent)
	switch {
	case a == nil:
		return fmt.Errorf("no agent %q in the configuration", agent)
	case machine < 1 || machine >= a.Machines.Count:
		return fmt.Errorf("machine %d of %s: agents.%s.machines.count is %d, so the further machines are numbered from 1 to %d", machine, agent, agent, a.Machines.Count, a.Machines.Count-1)
	}
	settings, err := machinesOf(cfg, a, observed(o))
	if err != nil {
		return err
	}
	return launch.Lend(ctx, launch.Lending{MachineSettings: settings, Machine: machine, Without: cfg.SecretEnv()})
}
