package launch

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"
)

// hello is what a machine says first, once for each of its devices.
type hello struct {
	Program string   `json:"program"` // digest
	Agent   string   `json:"agent"`
	Machine int      `json:"machine"` // from 1 on
	Count   int      `json:"count"`   // of the agent's machines, with the worker's
	Device  int      `json:"device"`  // index
	Devices []string `json:"devices"` // all of the machine
	Address string   `json:"address"` // of the machine, as it sees its end of the connection

	Lease time.Duration `json:"lease"`
}

// word is what the worker says to a machine until a follower is to be started. It has one of these.
type word struct {
	Refused string        `json:"refused,omitempty"` // why the machine cannot take part
	Taken   bool          `json:"taken,omitempty"`   // of a refusal: another has its number, perhaps one that is gone
	Entered bool          `json:"entered,omitempty"` // it takes part
	Begin   time.Duration `json:"begin,omitempty"`   // start a follower with this lease; its orders follow
	Over    *Over         `json:"over,omitempty"`
}

// Over is how a run ended, for the machines that took part.
type Over struct {
	Why     string `json:"why"`               // "": it is complete
	Stopped bool   `json:"stopped,omitempty"` // it can be gone on with
}

// errComplete is the end of a run that is complete.
var errComplete = errors.New("launch: the run is complete")

func (o Over) err(agent string) error {
	if o.Why == "" {
		return errComplete
	}
	return &OverError{agent, o}
}

// OverError is a run that ended before it was complete.
type OverError struct {
	Agent string
	Over
}

func (e *OverError) Error() string {
	return fmt.Sprintf("the worker of %s has ended: %s", e.Agent, e.Why)
}

// AbsentError is a wait for another machine that was given up.
type AbsentError struct {
	Who     string
	Waited  time.Duration
	Because string // or what to do
}

func (e *AbsentError) Error() string {
	return fmt.Sprintf("%s did not come within %v: %s", e.Who, e.Waited, e.Because)
}

// maxMachine bounds the numbers in a hello.
const maxMachine = 1 << 10

// decodeHello reads what a machine says first, and refuses what makes no sense whatever the agent is.
func decodeHello(content []byte) (h hello, err error) {
	if err := decodeJSON(content, &h); err != nil {
		return h, err
	}
	if h.Machine < 1 || h.Machine > maxMachine || h.Device < 0 || h.Device >= len(h.Devices) || len(h.Devices) > maxRanks || !isAddress(h.Address) {
		return h, fmt.Errorf("launch: device %d of %d, of machine %d at %.40q", h.Device, len(h.Devices), h.Machine, h.Address)
	}
	return h, nil
}

// refusal is why the machine cannot take part; "" if it can.
func (h hello) refusal(s MachineSettings, program string) string {
	switch {
	case h.Agent != s.Agent:
		return fmt.Sprintf("this is the worker of %s, and the machine is one of %.80q: give every agent an address of its own", s.Agent, h.Agent)
	case h.Machine >= s.Count:
		return fmt.Sprintf("agents.%s.machines.count is %d here, so machines are numbered to %d: there is no machine %d", s.Agent, s.Count, s.Count-1, h.Machine)
	case h.Count != s.Count:
		return fmt.Sprintf("its agents.%s.machines.count is %d and the worker's is %d: give all machines of %s the same configuration", s.Agent, h.Count, s.Count, s.Agent)
	case !slices.Equal(h.Devices, s.Devices):
		return fmt.Sprintf("its devices are %.200q and the worker's are %q: give all machines of %s the same configuration", h.Devices, s.Devices, s.Agent)
	case h.Lease != s.Lease:
		return fmt.Sprintf("its store.lease is %v and the worker's is %v: give all machines of %s the same configuration", h.Lease, s.Lease, s.Agent)
	case h.Program != program:
		return fmt.Sprintf("it runs another program than the worker (%.32q, and %s): give all machines of %s the same build of mgrpo", h.Program, program, s.Agent)
	}
	return ""
}

// say writes a value as a frame; nil is none.
func say(to io.Writer, kind frameKind, value any) (err error) {
	var content []byte
	if value != nil {
		if content, err = json.Marshal(value); err != nil {
			return err
		}
	}
	b, err := frame(kind, content)
	if err != nil {
		return err
	}
	_, err = to.Write(b)
	return err
}
