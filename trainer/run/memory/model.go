package memory

import "github.com/mgrpo/mgrpo/trainer/model/arch"

// Model describes an agent's model without its weights.
type Model struct {
	Arch      arch.Config // valid
	Trained   int64       // parameters that training changes, if the agent learns
	Quantised int64       // bytes of the weights that stay quantised, or 0
}
