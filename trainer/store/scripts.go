package store

import "github.com/redis/go-redis/v9"

// Every write is one of these scripts: atomic, and safe to repeat when its reply was lost. KEYS[1] is
// always the hash of epochs and ARGV[1], ARGV[2] the writer and its epoch; a writer whose epoch is
// not the newest changes nothing. KEYS[2] of those that announce something is the channel. Replies are
// arrays whose first word says what happened.

// fence begins every script but join.
const fence = `
local seal = redis.call('HMGET', KEYS[1], ARGV[1], ':nonce')
if (seal[1] or '') .. ':' .. (seal[2] or '') ~= ARGV[2] then return {'fenced', seal[1] or ''} end
local epoch = seal[1]
local function announce(channel, topic) redis.call('PUBLISH', channel, topic) end
`

// write puts a value where nothing was, remembers the phase for Trim and announces it.
// KEYS: epochs, events, hash, phases. ARGV: agent, epoch, field, value, topic, phase, step.
var writeScript = redis.NewScript(fence + `
local there = redis.call('HGET', KEYS[3], ARGV[3])
if there then
  if there == ARGV[4] then return {'same'} end
  return {'conflict'}
end
redis.call('HSET', KEYS[3], ARGV[3], ARGV[4])
redis.call('ZADD', KEYS[4], ARGV[7], ARGV[6])
announce(KEYS[2], ARGV[5])
return {'new'}
`)

// submit writes an invocation once and, the first time, appends it to its agent's stream.
// KEYS: epochs, events, calls, phases, stream. ARGV: agent, epoch, id, value, topic, phase, step.
var submitScript = redis.NewScript(fence + `
local there = redis.call('HGET', KEYS[3], ARGV[3])
if there then
  if there == ARGV[4] then return {'same'} end
  return {'conflict'}
end
redis.call('HSET', KEYS[3], ARGV[3], ARGV[4])
redis.call('ZADD', KEYS[4], ARGV[7], ARGV[6])
redis.call('XADD', KEYS[5], '*', 'id', ARGV[3], 'v', ARGV[4])
announce(KEYS[2], ARGV[5])
return {'new'}
`)

// complete writes an answer once and takes the invocation off its agent's hands.
// KEYS: epochs, events, results, claimed by the agent. ARGV: agent, epoch, id, value, topic, phase.
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

// version moves an agent's version on by one.
// KEYS: epochs, events, versions, record. ARGV: agent, epoch, version.
var versionScript = redis.NewScript(fence + `
local was = redis.call('HGET', KEYS[3], ARGV[1])
if was == ARGV[3] then return {'same'} end
if not was or tonumber(was) + 1 ~= tonumber(ARGV[3]) then return {'order', was or '(none: it has not started)'} end
redis.call('HSET', KEYS[3], ARGV[1], ARGV[3])
redis.call('XADD', KEYS[4], '*', 'event', 'version', 'agent', ARGV[1], 'epoch', epoch, 'version', ARGV[3])
announce(KEYS[2], 'version')
return {'new'}
`)

// stop ends the round; the first reason stands.
// KEYS: epochs, events, stop. ARGV: agent, epoch, reason, kind.
var stopScript = redis.NewScript(fence + `
if redis.call('EXISTS', KEYS[3]) == 0 then
  redis.call('HSET', KEYS[3], 'agent', ARGV[1], 'reason', ARGV[3], 'kind', ARGV[4])
end
announce(KEYS[2], 'stop')
return {'new'}
`)

// place does nothing that the fence does not. KEYS: epochs. ARGV: agent, epoch.
var placeScript = redis.NewScript(fence + `return {'yours'}`)

// ask remembers who was the first to ask for a stop. KEYS: epochs, meta. ARGV: agent, epoch.
var askScript = redis.NewScript(fence + `
redis.call('HSETNX', KEYS[2], 'asked', ARGV[1])
return {'new'}
`)

// met remembers that an agent's worker has come to a point. KEYS: epochs, events, met. ARGV: agent, epoch, topic.
var metScript = redis.NewScript(fence + `
redis.call('HSET', KEYS[3], ARGV[1], epoch)
announce(KEYS[2], ARGV[3])
return {'new'}
`)

// trim deletes the phases up to a step, and who was lost in them, also where they were not begun again.
// KEYS: epochs, phases. ARGV: agent, epoch, step, key prefix, agents...
var trimScript = redis.NewScript(fence + drop + `
for _, phase in ipairs(redis.call('ZRANGEBYSCORE', ARGV[4] .. 'losses', '-inf', ARGV[3])) do
  redis.call('UNLINK', ARGV[4] .. 'lost:' .. phase)
  redis.call('ZREM', ARGV[4] .. 'losses', phase)
end
dropPhases(ARGV[4], KEYS[2], '-inf', ARGV[3], 5)
return {'new'}
`)

// drop deletes what belongs to a range of phases. The names of its keys are made from the prefix,
// whose hash tag keeps them on one node.
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

// beat renews a lease, and tells a worker to which it was not announced that the round was stopped.
// KEYS: epochs, lease, stop. ARGV: agent, epoch, token, lease in ms.
var beatScript = redis.NewScript(fence + `
redis.call('SET', KEYS[2], ARGV[3], 'PX', ARGV[4])
if redis.call('EXISTS', KEYS[3]) == 1 then return {'stopped'} end
return {'new'}
`)

// leave gives a lease back, and what the worker had claimed and will not answer.
// KEYS: epochs, lease, claimed by the agent. ARGV: agent, epoch, token.
var leaveScript = redis.NewScript(fence + `
if redis.call('GET', KEYS[2]) == ARGV[3] then redis.call('UNLINK', KEYS[2], KEYS[3]) end
return {'new'}
`)
