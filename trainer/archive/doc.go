// Package archive keeps what a run leaves on disk.
//
// A checkpoint is a folder a step (see [Checkpoints]): one Hugging Face folder, optimizer file and state file an
// agent, and a manifest with the digest of every file, whose appearance makes the step complete. Beside
// them lie the agents' ledgers, which say what became of every rollout, their trajectories, and batches of
// updates that were refused. An [Archive] writes all of it for one agent's worker, while the steps go on.
//
// Every file is treated as hostile: sizes are bounded before anything is allocated, and an error names
// the file at fault.
package archive
