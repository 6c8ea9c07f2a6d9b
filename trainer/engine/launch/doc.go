// Package launch runs the processes of an agent's ranks above 0. The agent's worker is rank 0. It starts one process
// for each further device (RankGroup), sends each the same orders over a pipe, does its own part of the work, and ends them.
// A follower is the other end of the pipes (Inbox): it executes orders, and ends when the worker does.
//
// An order is a JSON frame, followed by a frame for each sequence of its batch. Orders are executed one at a time.
// Meanwhile a follower samples turns: a request is a numbered frame; its number serves to cancel and to answer it.
// Received frames are bounded and checked, since a faulty process may write anything.
package launch
