package assemble

import (
	"context"
	"crypto/rand"
	"net"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/engine/launch"
	"github.com/mgrpo/mgrpo/trainer/engine/policy"
	"github.com/mgrpo/mgrpo/trainer/model"
)

// An agent with several devices has a process for each of them (docs/ranks.md). This process is rank 0 and starts the
// others.

// openOnRanks loads the agent's weights and, if it learns, allocates the buffers for training, in this process and in the
// processes of its further ranks.
func (p *AgentParts) openOnRanks(ctx context.Context, opt AgentOptions, a *config.Agent) (err error) {
	all := a.Ranks()
	if opt.Learns {
		opt.size, opt.gathered = len(all), a.Shard == "full"
	}
	p.group, err = launch.StartGroup(ctx, launch.GroupOptions{Agent: a.Name, Devices: a.OnMachine(),
		Machines: opt.Process.Machines[a.Name], Lease: opt.Config.Store.Lease, HiddenEnv: opt.Config.SecretEnv()})
	if err != nil {
		return err
	}
	open := func(rank int) launch.Order {
		return launch.Order{Kind: launch.Open, Open: &launch.OpenOrder{Config: configOf(opt, a, all[rank]), Agent: a.Name, Weights: opt.Weights,
			Learns: opt.Learns, Gathered: opt.gathered, Rank: rank, Size: len(all), SharingThreads: opt.sharingThreads(a, rank)}}
	}
	if _, err = p.group.Each(ctx, open, func(ctx context.Context) error { return p.load(ctx, opt, a) }); err != nil || !opt.Learns {
		return err
	}
	at := p.group.Addresses()
	meet, err := torch.ServeRendezvous(net.JoinHostPort(at[0], "0"))
	if err != nil {
		return err
	}
	defer meet.Close()
	name := rand.Text()
	group := func(rank int) launch.Rendezvous {
		return launch.Rendezvous{Address: meet.Addr(), Name: name, Bind: at[rank]}
	}
	replies, err := p.group.Each(ctx, func(rank int) launch.Order { return launch.Order{Kind: launch.Join, Group: new(group(rank))} },
		func(ctx context.Context) error {
			return p.join(ctx, opt, group(0))
		})
	if err != nil {
		return err
	}
	return p.Learner.EndUnlessEqual(ctx, replies)
}

// configOf returns the configuration of a follower, whose agent has the follower's device only.
func configOf(opt AgentOptions, a *config.Agent, device string) []byte {
	own := opt.Config.OnOneMachine()
	other := own.Agent(a.Name)
	other.Engine.Slots = opt.Config.Slots(a)                            // depends on the number of devices
	other.Device, other.Devices, other.Shard = device, nil, "optimizer" // OpenOrder describes how the ranks divide the weights
	return own.Dump("/")
}

// sharingThreads returns the number of processes that share the cores of a rank's machine, including the rank. There is no other
// agent on a further machine.
func (o AgentOptions) sharingThreads(a *config.Agent, rank int) int {
	if n := len(a.OnMachine()); rank >= n {
		return n
	}
	return o.devices()
}

// openSampler opens the agent's sampler: an engine on each of its devices, or servers.
func (p *AgentParts) openSampler(ctx context.Context, opt AgentOptions, a *config.Agent) (s policy.Policy, err error) {
	open := func(ctx context.Context) (err error) {
		if s, err = openerOf(opt.Config, a).open(ctx, p, opt); err == nil {
			p.Policy = s // Close closes it even if the followers fail
		}
		return err
	}
	if a.Engine.Remote() || p.group == nil {
		err = open(ctx)
		return s, err
	}
	if _, err = p.group.Do(ctx, launch.Order{Kind: launch.Sample}, nil, open); err != nil {
		return nil, err
	}
	return p.group.Sampler(s, p.Model.Config), nil
}

// CheckFollowerWeights compares the weights of an agent that does not learn. If a follower's weights differ from rank 0's, it ends
// the followers and returns an error. Rank 0 must have loaded its checkpoint. Ranks of a learning agent compare their trained
// weights themselves.
func (p *AgentParts) CheckFollowerWeights(ctx context.Context) error {
	if p.group == nil || p.Learner != nil {
		return nil
	}
	var digest uint32
	replies, err := p.group.Do(ctx, launch.Order{Kind: launch.DigestWeights}, nil, func(ctx context.Context) (err error) {
		digest, err = p.digest(ctx)
		return err
	})
	if err != nil {
		return err
	}
	return p.group.EndUnlessEqual(digest, replies)
}

// digest returns a checksum of the weights used for sampling.
func (p *AgentParts) digest(ctx context.Context) (uint32, error) {
	if adapters, adapts := p.Params.(*model.Adapters); adapts {
		return adapters.Digest(ctx)
	}
	return p.Model.Digest(ctx)
}

// Freeze frees the buffers for training. Further ranks end if they neither sample nor hold a share of the weights.
func (p *AgentParts) Freeze(ctx context.Context) error {
	err := p.Learner.Release(ctx)
	p.Learner = nil
	_, sample := p.Policy.(*launch.RankedPolicy)
	if params, learned := p.Params.(launch.RankedParams); !sample && !(learned && params.Shared()) {
		p.group.Close()
		p.group = nil
	}
	return err
}

// FollowerError returns the reason why an agent's further ranks are gone, or nil while they run or if there are none.
func (p *AgentParts) FollowerError() error { return p.group.Err() }

// join joins the group of an agent's ranks, whose weights are loaded, and adds the learner.
func (p *AgentParts) join(ctx context.Context, opt AgentOptions, g launch.Rendezvous) error {
	timeout := opt.Config.Store.Timeout // longest time that others wait for the agent, and therefore for one of its ranks
	group, err := torch.OpenGroup(ctx, torch.GroupOptions{Rendezvous: g.Address, Name: g.Name, Bind: g.Bind,
		Rank: opt.rank, Size: opt.size, Join: timeout, Timeout: timeout})
	if err != nil {
		return err
	}
	p.frees = append(p.frees, func(context.Context) error { return group.Close() })
	err = p.Device.Do(ctx, func(s *torch.Scope) error {
		transport, err := group.Transport(ctx, s)
		if transport != "" && opt.Note != nil {
			opt.Note("its devices exchange weights and gradients over " + transport)
		}
		return err
	})
	if err != nil {
		return err
	}
	return p.addLearner(ctx, opt, opt.Config.Agent(opt.Agent), group)
}
