// Package launch has the processes of an agent's other ranks. The agent's worker is rank 0: it starts a process for each
// further device (Crew), gives each the same orders over a pipe, does its own part of what it ordered, and ends them. A
// follower is the other end of the pipes (Post): it obeys, and it ends when the worker does.
//
// An order is a frame of JSON, and a frame for each sequence of its batch. Beside the orders, which are carried out one at a time, a
// follower samples turns: a request is a frame with a number, by which it can be cancelled and is answered. What arrives is bounded and
// checked, since a process that has gone wrong may write anything.
package launch
