// Package gateway lets somebody else's program hold the conversations of a team, through the API of OpenAI. Every call of
// an agent becomes a trajectory with the tokens that were sampled, attributed to its rollout and invocation.
//
//	POST /v1/chat/completions   a turn of a chat, also as server-sent events
//	POST /v1/responses          the same in OpenAI's newer form, of which nothing is stored
//	POST /v1/completions        a turn after a text or token ids
//	GET  /v1/models             the agents, and GET /v1/models/NAME one of them
//	     /r/KEY/v1/...          the same, for programs that insist on an API key of their own
//	POST /rollouts/lease        work for a program on another machine
//	POST /rollouts/ID/renew     the program is still at it
//	PUT  /rollouts/ID/result    what came of it
//
// model names the agent. The Door of a process answers for the agents that work there and forwards requests for others to
// their workers. The API key is a Ticket: it names one attempt at one rollout and is signed with the run's Secret, so a
// program can use the agents in its own rollout only, and only while the rollout lasts.
//
// Messages form a tree in each attempt (see forest): a request whose messages extend a stored conversation continues it
// with the tokens that were sampled. Nothing that was sampled and is trained on is tokenised again.
package gateway
