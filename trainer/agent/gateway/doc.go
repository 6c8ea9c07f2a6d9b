// Package gateway lets an external program hold the conversations of a team through OpenAI's API. Every call of an
// agent becomes a trajectory of sampled tokens, attributed to its rollout and invocation.
//
//	POST /v1/chat/completions   a turn of a chat, also as server-sent events
//	POST /v1/responses          the same in OpenAI's newer form; nothing is stored
//	POST /v1/completions        a turn after a text or token ids
//	GET  /v1/models             the agents, and GET /v1/models/NAME one of them
//	     /r/KEY/v1/...          the same, for programs that insist on their own API key
//	POST /rollouts/lease        work for a program on another machine
//	POST /rollouts/ID/renew     the program is still working
//	PUT  /rollouts/ID/result    the program's result
//
// model names the agent. The Server of a process answers for the agents that work there and forwards requests for other
// agents to their workers. The API key is a Ticket. It names one attempt at one rollout and is signed with the run's
// Secret. So a program can use the agents only in its own rollout, and only while the rollout lasts.
//
// Messages form a tree in each attempt (see forest). A request whose messages extend a stored conversation continues it
// with the sampled tokens. Sampled tokens that are trained on are never tokenised again.
//
// This package is private and changes without notice; docs/library.md lists the public ones.
package gateway
