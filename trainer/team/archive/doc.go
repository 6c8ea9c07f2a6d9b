// Package archive writes and reads the files that a run leaves on disk.
//
// Each checkpoint is a folder (see [Checkpoints]). It contains, for each agent, a Hugging Face folder with an optimizer
// file and a state file, and a manifest with the digest of every file. The checkpoint is complete when the manifest exists.
// The run's folder also contains the agents' ledgers, which record for every rollout whether it was trained on, their
// trajectories, and the batches of refused updates. An [Archive] writes all of these for one agent's worker, while the
// steps continue.
//
// Every file that is read is treated as hostile: sizes are bounded before memory is allocated, and an error names the file.
package archive
