// Package store is what the agents of a run share through Redis: sub-tasks and their answers,
// outcomes, holdings, versions and statistics. Only texts and statistics travel; tokens, log-probs,
// gradients and weights never do. The protocol is written down in docs/protocol.md.
//
// A Store is a connection; a Member is one agent's place in the run. One process may hold several
// members of one Store (mgrpo train, embedded or not) or one (mgrpo worker): the code path is the
// same, and so is the server's view of it.
//
// Every write is a Lua script that is idempotent by id, checks that the writer's epoch is the newest
// of its agent, and announces itself on one stream of events. A Store reads that stream on one
// connection, whatever number of goroutines wait: each wait looks at its key, sleeps until its topic
// is announced, and looks again.
package store

// ProtocolVersion is the version of keys, values and scripts. Workers of different versions refuse
// to meet.
const ProtocolVersion = 1
