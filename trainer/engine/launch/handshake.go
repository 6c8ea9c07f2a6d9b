package launch

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"
)

// handshake is the first frame of a machine, sent once for each of its devices.
type handshake struct {
	Program string   `json:"program"` // digest of the program
	Agent   string   `json:"agent"`
	Machine int      `json:"machine"` // counted from 1
	Count   int      `json:"count"`   // number of the agent's machines, including the worker's
	Device  int      `json:"device"`  // index of the device
	Devices []string `json:"devices"` // all devices of the machine
	Address string   `json:"address"` // the machine's address at its end of the connection

	Lease time.Duration `json:"lease"`
}

// control is a message to a machine, before a follower is started. Exactly one field is set; Taken accompanies
// Refused.
type control struct {
	Refused string        `json:"refused,omitempty"` // reason why the machine cannot take part
	Taken   bool          `json:"taken,omitempty"`   // if refused: another connection, perhaps a dead one, has this number and device
	Entered bool          `json:"entered,omitempty"` // the machine takes part
	Begin   time.Duration `json:"begin,omitempty"`   // start a follower with this lease; its orders follow
	Over    *RunEnd       `json:"over,omitempty"`
}

// RunEnd is the end of a run, as reported to the machines that took part.
type RunEnd struct {
	Why     string `json:"why"`               // "": the run is complete
	Stopped bool   `json:"stopped,omitempty"` // the run can be continued
}

// errComplete is the error with which a complete run ends for a machine.
var errComplete = errors.New("launch: the run is complete")

func (o RunEnd) err(agent string) error {
	if o.Why == "" {
		return errComplete
	}
	return &RunEndedError{agent, o}
}

// maxMachine bounds the number of a machine in a handshake.
const maxMachine = 1 << 10

// decodeHandshake reads a machine's first frame, and refuses values that are wrong for every agent.
func decodeHandshake(content []byte) (h handshake, err error) {
	if err := decodeJSON(content, &h); err != nil {
		return h, err
	}
	if h.Machine < 1 || h.Machine > maxMachine || h.Device < 0 || h.Device >= len(h.Devices) || len(h.Devices) > maxRanks || !isAddress(h.Address) {
		return h, fmt.Errorf("launch: device %d of %d, of machine %d at %.40q", h.Device, len(h.Devices), h.Machine, h.Address)
	}
	return h, nil
}

// refusal returns the reason why the machine cannot take part, or "" if it can.
func (h handshake) refusal(s ListenOptions, program string) string {
	switch {
	case h.Agent != s.Agent:
		return fmt.Sprintf("this is the worker of %s, but the machine belongs to %.80q: give every agent a different address", s.Agent, h.Agent)
	case h.Machine >= s.Count:
		return fmt.Sprintf("agents.%s.machines.count is %d here, so machines are numbered up to %d: there is no machine %d", s.Agent, s.Count,
			s.Count-1, h.Machine)
	case h.Count != s.Count:
		return fmt.Sprintf("its agents.%s.machines.count is %d and the worker's is %d: give all machines of %s the same configuration", s.Agent, h.Count,
			s.Count, s.Agent)
	case !slices.Equal(h.Devices, s.Devices):
		return fmt.Sprintf("its devices are %.200q and the worker's are %q: give all machines of %s the same configuration", h.Devices, s.Devices, s.Agent)
	case h.Lease != s.Lease:
		return fmt.Sprintf("its store.lease is %v and the worker's is %v: give all machines of %s the same configuration", h.Lease, s.Lease, s.Agent)
	case h.Program != program:
		return fmt.Sprintf("it runs another program than the worker (%.32q instead of %s): give all machines of %s the same build of mgrpo", h.Program,
			program, s.Agent)
	}
	return ""
}

// writeFrame writes a frame with a value as JSON, or without content if value is nil.
func writeFrame(to io.Writer, kind frameKind, value any) (err error) {
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
