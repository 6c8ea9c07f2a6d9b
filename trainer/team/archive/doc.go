// Package archive keeps what a run leaves on disk.
//
// Each checkpoint is a folder (see [Checkpoints]). It has a Hugging Face folder with an optimizer file and a state file for
// each agent, and a manifest with the digest of every file. The checkpoint is complete when the manifest is there. The
// run's folder also has the agents' ledgers, which say for every rollout whether it was trained on, their trajectories,
// and the batches of refused updates. An [Archive] writes all of these for one agent's worker, while the steps go on.
//
// Every file that is read is treated as hostile: sizes are bounded before memory is allocated, and an error names the
// file.
package archive
