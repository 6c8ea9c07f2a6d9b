package store

import "github.com/redis/go-redis/v9"

// Every write is one of these scripts. A script is atomic, and can safely be repeated when its reply was lost. KEYS[1] is
// the hash of epochs, ARGV[1] the writer's agent, and ARGV[2] its fencing token (epoch:nonce). A writer whose fencing token
// is not the newest does not change anything. In scripts that publish a topic, KEYS[2] is the channel. A reply is an array;
// its first word is the result.

// fence is the beginning of every script except join.
const fence = `
local own = redis.call('HMGET', KEYS[1], ARGV[1], ':nonce')
if (own[1] or '') .. ':' .. (own[2] or '') ~= ARGV[2] then return {'fenced', own[1] or ''} end
local epoch = own[1]
local function announce(channel, topic) redis.call('PUBLISH', channel, topic) end
`

// writeOnce is the beginning of scripts that write a value once and remember its phase for Trim.
const writeOnce = fence + `
local there = redis.call('HGET', KEYS[3], ARGV[3])
if there then
  if there == ARGV[4] then return {'same'} end
  return {'conflict'}
end
redis.call('HSET', KEYS[3], ARGV[3], ARGV[4])
redis.call('ZADD', KEYS[4], ARGV[7], ARGV[6])
`

// writeScript writes a value once, remembers the phase for Trim, and publishes the topic.
// KEYS: epochs, events, hash, phases. ARGV: agent, fencing token, field, value, topic, phase, step.
var writeScript = redis.NewScript(writeOnce + `
announce(KEYS[2], ARGV[5])
return {'new'}
`)

// submitScript writes an invocation once and, the first time, appends it to its agent's stream.
// KEYS: epochs, events, calls, phases, stream. ARGV: agent, fencing token, id, value, topic, phase, step.
var submitScript = redis.NewScript(writeOnce + `
redis.call('XADD', KEYS[5], '*', 'id', ARGV[3], 'v', ARGV[4])
announce(KEYS[2], ARGV[5])
return {'new'}
`)

// completeScript writes an answer once and ends the claim on the invocation.
// KEYS: epochs, events, results, claimed by the agent. ARGV: agent, fencing token, id, value, topic, phase.
var completeScript = redis.NewScript(fence + `
local there = redis.call('HGET', KEYS[3], ARGV[3])
local said = 'new'
if there then
  said = (there == ARGV[4]) and 'same' or 'conflict'
else
  redis.call('HSET', KEYS[3], ARGV[3], ARGV[4])
end
redis.call('HDEL', KEYS[4], ARGV[6] .. ' ' .. ARGV[3])
if said == 'new' then announce(KEYS[2], ARGV[5]) end
return {said}
`)

// versionScript raises an agent's version by one.
// KEYS: epochs, events, versions, record. ARGV: agent, fencing token, version.
var versionScript = redis.NewScript(fence + `
local was = redis.call('HGET', KEYS[3], ARGV[1])
if was == ARGV[3] then return {'same'} end
if not was or tonumber(was) + 1 ~= tonumber(ARGV[3]) then return {'order', was or '(none: it has not started)'} end
redis.call('HSET', KEYS[3], ARGV[1], ARGV[3])
redis.call('XADD', KEYS[4], '*', 'event', 'version', 'agent', ARGV[1], 'epoch', epoch, 'version', ARGV[3])
announce(KEYS[2], 'version')
return {'new'}
`)

// stopScript ends the round. The first reason is kept. KEYS: epochs, events, stop. ARGV: agent, fencing token, reason,
// kind.
var stopScript = redis.NewScript(fence + `
if redis.call('EXISTS', KEYS[3]) == 0 then
  redis.call('HSET', KEYS[3], 'agent', ARGV[1], 'reason', ARGV[3], 'kind', ARGV[4])
end
announce(KEYS[2], 'stop')
return {'new'}
`)

// placeScript only checks the fencing token. KEYS: epochs. ARGV: agent, fencing token.
var placeScript = redis.NewScript(fence + `return {'yours'}`)

// askScript stores the first agent that asked for a stop. KEYS: epochs, meta. ARGV: agent, fencing token.
var askScript = redis.NewScript(fence + `
redis.call('HSETNX', KEYS[2], 'asked', ARGV[1])
return {'new'}
`)

// barrierScript stores that an agent's worker has reached a barrier. KEYS: epochs, events, met. ARGV: agent, fencing
// token, topic.
var barrierScript = redis.NewScript(fence + `
redis.call('HSET', KEYS[3], ARGV[1], epoch)
announce(KEYS[2], ARGV[3])
return {'new'}
`)

// recordScript appends a record of the run's numbers, and drops the oldest ones.
// KEYS: epochs, records. ARGV: agent, fencing token, records to keep, record.
var recordScript = redis.NewScript(fence + `
redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[3], '*', 'agent', ARGV[1], 'record', ARGV[4])
return {'new'}
`)

// activityScript stores the worker's current activity. KEYS: epochs, activity. ARGV: agent, fencing token, activity.
var activityScript = redis.NewScript(fence + `
redis.call('HSET', KEYS[2], ARGV[1], ARGV[3])
return {'new'}
`)

// trimScript deletes the phases up to a step, and the counts of workers that were lost in them, including phases that
// were not begun again after a new round.
// KEYS: epochs, phases. ARGV: agent, fencing token, step, key prefix, agents...
var trimScript = redis.NewScript(fence + drop + `
for _, phase in ipairs(redis.call('ZRANGEBYSCORE', ARGV[4] .. 'losses', '-inf', ARGV[3])) do
  redis.call('UNLINK', ARGV[4] .. 'lost:' .. phase)
  redis.call('ZREM', ARGV[4] .. 'losses', phase)
end
dropPhases(ARGV[4], KEYS[2], '-inf', ARGV[3], 5)
return {'new'}
`)

// drop deletes all keys of a range of phases. It forms the names of the keys from the prefix; its hash tag keeps them on
// one node.
const drop = `
local function dropPhases(prefix, phases, from, to, firstAgent)
  for _, phase in ipairs(redis.call('ZRANGEBYSCORE', phases, from, to)) do
    for _, kind in ipairs({'plan', 'call', 'result', 'outcome', 'trajectories', 'part', 'manifest'}) do
      redis.call('UNLINK', prefix .. kind .. ':' .. phase)
    end
    for i = firstAgent, #ARGV do
      redis.call('UNLINK', prefix .. 'stream:' .. phase .. ':' .. ARGV[i])
    end
    redis.call('ZREM', phases, phase)
  end
end
`

// beatScript renews a lease. It also returns whether the round was stopped, in case the published message was lost. KEYS:
// epochs, lease, stop. ARGV: agent, fencing token, token, lease in ms.
var beatScript = redis.NewScript(fence + `
redis.call('SET', KEYS[2], ARGV[3], 'PX', ARGV[4])
if redis.call('EXISTS', KEYS[3]) == 1 then return {'stopped'} end
return {'new'}
`)

// leaveScript deletes the lease, and the worker's claims, which it will not answer.
// KEYS: epochs, lease, claimed by the agent. ARGV: agent, fencing token, token.
var leaveScript = redis.NewScript(fence + `
if redis.call('GET', KEYS[2]) == ARGV[3] then redis.call('UNLINK', KEYS[2], KEYS[3]) end
return {'new'}
`)
