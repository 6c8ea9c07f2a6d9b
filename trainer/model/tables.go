package model

import (
	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
)

// tables holds the tables of the rotary embedding and of the heads. They depend only on the configuration.
type tables struct {
	positions int // rows of the rotary tables
	rotations map[arch.Rotary]rotation
	heads     headTables
}

// tablesOf makes the tables. limit is the largest number of positions; 0 means the configuration's.
func tablesOf(s *torch.Scope, cfg *arch.Config, limit int) tables {
	positions := cfg.MaxPosition
	if limit > 0 && limit < positions {
		positions = limit
	}
	return tables{positions, rotationsOf(s, cfg, positions), headTablesOf(s, cfg, positions)}
}

// drop frees the tables.
func (t tables) drop() {
	for _, r := range t.rotations {
		r.cos.Drop()
		r.sin.Drop()
	}
	for _, h := range t.heads.tensors() {
		h.Drop()
	}
}
