package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/mgrpo/mgrpo/bench/measure"
	"github.com/mgrpo/mgrpo/bench/roofline"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/run/assemble"
)

type benchRooflineCmd struct {
	requiredConfig
	On      []string `default:"h100,h200,b200" placeholder:"DEVICE" help:"Devices: h100, h200, b200, or the .json file of mgrpo bench kernels on a CPU."`
	Prompt  int      `default:"1000" placeholder:"N" help:"Tokens of a prompt."`
	Turns   int      `default:"4" placeholder:"N" help:"Turns of a conversation."`
	Sampled int      `default:"250" placeholder:"N" help:"Tokens sampled in a turn."`
	Results int      `default:"500" placeholder:"N" help:"Tokens of tool results and answers between two turns."`
	Calls   int      `default:"2" placeholder:"N" help:"Calls of each sub-agent in a rollout."`
}

func (benchRooflineCmd) Help() string {
	return `Computes the least time of a configuration's step on a device, from bytes, operations and launches, and prints each
part's share (docs/roofline.md). It measures nothing.`
}

// Validate checks the options. kong calls it before the command runs.
func (c benchRooflineCmd) Validate() error {
	if c.Prompt < 1 || c.Turns < 1 || c.Sampled < 1 || c.Results < 0 || c.Calls < 0 {
		return errors.New("--prompt, --turns and --sampled must be at least 1, --results and --calls at least 0")
	}
	return c.requiredConfig.Validate()
}

func (c *benchRooflineCmd) Run() error {
	cfg, err := c.load()
	if err != nil {
		return err
	}
	for i, kind := range c.On {
		d, err := deviceOf(kind)
		if err != nil {
			return fmt.Errorf("--on: %w", err)
		}
		steps, err := c.steps(cfg, d)
		if err != nil {
			return err
		}
		if i > 0 {
			fmt.Println()
		}
		roofline.Write(os.Stdout, d, steps)
	}
	return nil
}

func deviceOf(kind string) (roofline.Device, error) {
	if !strings.HasSuffix(kind, ".json") {
		return roofline.GPU(kind)
	}
	results, err := measure.Read(kind)
	if err != nil {
		return roofline.Device{}, err
	}
	return roofline.Processor(results, results.Ceilings, results.Machine.ISA)
}

// steps returns the steps of the agents that compute here, as if each one's device were of that kind.
func (c *benchRooflineCmd) steps(cfg *config.Config, d roofline.Device) (steps []roofline.Step, err error) {
	lengths := roofline.Work{Prompt: c.Prompt, Turns: c.Turns, Sampled: c.Sampled, Results: c.Results}
	for _, name := range cfg.AgentNames() {
		a := cfg.Agent(name)
		if a.Model.Endpoint != nil {
			continue
		}
		moved := *a
		if onGPU := a.Device != "cpu"; onGPU != d.GPU {
			moved.Devices = a.OnMachine()
			for i := range moved.Devices {
				moved.Devices[i] = "cpu"
				if d.GPU {
					moved.Devices[i] = fmt.Sprint("cuda:", i)
				}
			}
			moved.Device = moved.Devices[0]
		}
		m, err := assemble.ModelOf(cfg, &moved, nil)
		if err != nil {
			return nil, err
		}
		if longest := moved.ContextTokens(m.Arch.MaxPosition); lengths.Length() > longest {
			return nil, fmt.Errorf("conversations of %d tokens, as given by --prompt, --turns, --sampled and --results, are too long: %s may have %d "+
				"(limits.max_tokens, and the model's own limit); lower some of the four",
				lengths.Length(), name, longest)
		}
		work := roofline.WorkOf(cfg, &moved, lengths, c.Calls)
		if work.Prompts == 0 {
			continue
		}
		steps = append(steps, roofline.Floor(d, roofline.AgentOf(cfg, &moved, m.Arch, m.Trained, m.Quantised), work))
	}
	if len(steps) == 0 {
		return nil, errors.New("no agent of this configuration computes here")
	}
	return steps, nil
}
