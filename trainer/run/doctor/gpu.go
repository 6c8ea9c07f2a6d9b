package doctor

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"github.com/mgrpo/mgrpo/cuda"
	"github.com/mgrpo/mgrpo/trainer/run/memory"
)

// gpus holds the GPUs that the driver shows to this process.
type gpus struct {
	devices []cuda.Device
	free    map[int]int64 // free bytes, by index
	err     error
}

func listGPUs() (g gpus) {
	g.free = map[int]int64{}
	if g.devices, g.err = cuda.Devices(); g.err != nil {
		return g
	}
	for _, d := range g.devices {
		m, err := cuda.MemoryOf(d.Index)
		if err != nil {
			g.err = err
			return g
		}
		g.free[d.Index] = m.Free
	}
	return g
}

// findings returns one finding for each GPU, and a failure for each agent whose GPU is missing.
func (g gpus) findings(o Options) (out []Finding) {
	switch {
	case g.err != nil:
		out = append(out, Finding{Fail, "GPU", oneLine(g.err), "check the driver with nvidia-smi"})
	case len(g.devices) == 0 && cuda.Required():
		out = append(out, Finding{Fail, "GPU", cmp.Or(o.CPUOnly, "there is no GPU that this process may use"),
			"MGRPO_REQUIRE_GPU is set: check the driver with nvidia-smi, and that this is mgrpo-cuda"})
	case o.CPUOnly != "":
		out = append(out, Finding{OK, "GPU", "not in use: " + o.CPUOnly, ""})
	case len(g.devices) == 0:
		out = append(out, Finding{OK, "GPU", "there is no GPU that this process may use", ""})
	}
	for _, d := range g.devices {
		out = append(out, Finding{OK, "GPU", fmt.Sprintf("%v, %s free, driver %s", d, memory.Size(g.free[d.Index]), cuda.Driver()), ""})
	}
	if o.Config == nil {
		return out
	}
	for _, name := range o.agents() {
		a := o.Config.Agent(name)
		for i, device := range a.OnMachine() {
			key := "agents." + a.Name + ".device"
			if len(a.Devices) > 0 {
				key += fmt.Sprintf("s[%d]", i)
			}
			number, isGPU := strings.CutPrefix(device, "cuda")
			index, _ := strconv.Atoi(strings.TrimPrefix(number, ":")) // 0 without a number
			if _, here := g.free[index]; isGPU && !here {
				out = append(out, Finding{Fail, "GPU", fmt.Sprintf("%s is %s, which this machine does not have", key, device),
					"name a device of this machine, such as cpu, or run this agent's worker on the server that has it"})
			}
		}
	}
	return out
}
