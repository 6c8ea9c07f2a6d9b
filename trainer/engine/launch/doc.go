// Package launch runs the processes of an agent's ranks above 0, its followers. The agent's worker is rank 0. It starts a
// follower for each further device of its machine (RankGroup). On other machines, ServeMachine starts them. The worker sends
// orders to all followers, does its own part of the work, and ends the followers. A follower receives orders over a pipe
// (Inbox); between machines, a TLS connection relays them. A follower ends when the worker does.
//
// An order is a JSON frame, followed by a frame for each sequence of its batch. Orders are executed one at a time.
// Meanwhile a follower samples turns. Each request for a turn has a number, to which its answer and its cancellation refer.
// Received frames are bounded and checked, since a faulty process may write anything.
//
// This package is private and changes without notice; docs/library.md lists the public ones.
package launch
