package store

import "github.com/redis/go-redis/v9"

// Every write is one of these scripts: atomic, and safe to repeat when its reply was lost. KEYS[1] is
// always the hash of epochs and ARGV[1], ARGV[2] the writer and its epoch; a writer whose epoch is
// not the newest changes nothing. KEYS[2] of those that announce something is the channel. Replies are
// arrays whose first word says what happened.

// fence begins every script but join.
const fence = `
local now = redis.call('HGET', KEYS[1], ARGV[1])
if now ~= ARGV[2] then return {'fenced', now or ''} end
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
redis.call('XADD', KEYS[5], '*', 'v', ARGV[4])
announce(KEYS[2], ARGV[5])
return {'new'}
`)

// claim hands out one entry: first one whose holder has been silent for a lease, else a new one.
// KEYS: epochs, plan, stream. ARGV: agent, epoch, consumer, lease in ms.
var claimScript = redis.NewScript(fence + `
if redis.call('HGET', KEYS[2], 'ended') then return {'ended'} end
if redis.call('EXISTS', KEYS[3]) == 0 then return {'none'} end
redis.pcall('XGROUP', 'CREATE', KEYS[3], 'workers', '0')
local lost = redis.call('XAUTOCLAIM', KEYS[3], 'workers', ARGV[3], ARGV[4], '0-0', 'COUNT', '1')
local entry = lost[2] and lost[2][1]
if entry then
  local held = redis.call('XPENDING', KEYS[3], 'workers', entry[1], entry[1], '1')
  return {'entry', entry[1], entry[2][2], held[1][4]}
end
local fresh = redis.call('XREADGROUP', 'GROUP', 'workers', ARGV[3], 'COUNT', '1', 'STREAMS', KEYS[3], '>')
if not (fresh and fresh[1]) then return {'none'} end
entry = fresh[1][2][1]
return {'entry', entry[1], entry[2][2], 1}
`)

// complete writes an answer once and takes the entry off its agent's hands.
// KEYS: epochs, events, results, stream. ARGV: agent, epoch, id, value, topic, entry.
var completeScript = redis.NewScript(fence + `
local there = redis.call('HGET', KEYS[3], ARGV[3])
local said = 'new'
if there then
  said = (there == ARGV[4]) and 'same' or 'conflict'
else
  redis.call('HSET', KEYS[3], ARGV[3], ARGV[4])
end
if ARGV[6] ~= '' then redis.call('XACK', KEYS[4], 'workers', ARGV[6]) end
if said == 'new' then announce(KEYS[2], ARGV[5]) end
return {said}
`)

// version moves an agent's version on by one.
// KEYS: epochs, events, versions. ARGV: agent, epoch, version.
var versionScript = redis.NewScript(fence + `
local was = redis.call('HGET', KEYS[3], ARGV[1])
if was == ARGV[3] then return {'same'} end
if tonumber(was) + 1 ~= tonumber(ARGV[3]) then return {'order', was} end
redis.call('HSET', KEYS[3], ARGV[1], ARGV[3])
announce(KEYS[2], 'version')
return {'new'}
`)

// stop ends the run; the first reason stands.
// KEYS: epochs, events, stop. ARGV: agent, epoch, reason, failed.
var stopScript = redis.NewScript(fence + `
if redis.call('EXISTS', KEYS[3]) == 0 then
  redis.call('HSET', KEYS[3], 'agent', ARGV[1], 'reason', ARGV[3], 'failed', ARGV[4])
end
announce(KEYS[2], 'stop')
return {'new'}
`)

// ask remembers who was the first to ask for a stop. KEYS: epochs, meta. ARGV: agent, epoch.
var askScript = redis.NewScript(fence + `
redis.call('HSETNX', KEYS[2], 'asked', ARGV[1])
return {'new'}
`)

// ready remembers that an agent's worker was ready to begin. KEYS: epochs, events, ready. ARGV: agent, epoch.
var readyScript = redis.NewScript(fence + `
redis.call('HSET', KEYS[3], ARGV[1], ARGV[2])
announce(KEYS[2], 'ready')
return {'new'}
`)

// trim deletes the phases up to a step.
// KEYS: epochs, phases. ARGV: agent, epoch, step, key prefix, agents...
var trimScript = redis.NewScript(fence + drop + `
dropPhases(ARGV[4], KEYS[2], '-inf', ARGV[3], 5)
return {'new'}
`)

// drop deletes what belongs to a range of phases. The names of its keys are made from the prefix,
// whose hash tag keeps them on one node.
const drop = `
local function dropPhases(prefix, phases, from, to, firstAgent)
  for _, phase in ipairs(redis.call('ZRANGEBYSCORE', phases, from, to)) do
    for _, kind in ipairs({'plan', 'call', 'result', 'outcome', 'holding'}) do
      redis.call('DEL', prefix .. kind .. ':' .. phase)
    end
    for i = firstAgent, #ARGV do
      redis.call('DEL', prefix .. 'stream:' .. phase .. ':' .. ARGV[i])
    end
    redis.call('ZREM', phases, phase)
  end
end
`

// beat renews a lease. KEYS: epochs, lease. ARGV: agent, epoch, token, lease in ms.
var beatScript = redis.NewScript(fence + `
redis.call('SET', KEYS[2], ARGV[3], 'PX', ARGV[4])
return {'new'}
`)

// leave gives a lease back. KEYS: epochs, lease. ARGV: agent, epoch, token.
var leaveScript = redis.NewScript(fence + `
if redis.call('GET', KEYS[2]) == ARGV[3] then redis.call('DEL', KEYS[2]) end
return {'new'}
`)

// join gives an agent its place. The first to join while nobody is alive begins the run anew: its
// greeting and its version stand, what later versions left behind is dropped, a stop and who was ready are
// forgotten. Everyone else must agree with it.
// KEYS: epochs, ready, meta, versions, phases, stop, own lease, all leases...
// ARGV: agent, token, lease in ms, greeting, version, key prefix, nonce, agents...
var joinScript = redis.NewScript(`
local own = redis.call('GET', KEYS[7])
if own == ARGV[2] then
  return {'joined', redis.call('HGET', KEYS[1], ARGV[1]), redis.call('HGET', KEYS[3], 'nonce')}
end
if own then return {'held', redis.call('PTTL', KEYS[7])} end
local alive = ''
for i = 8, #KEYS do
  if redis.call('EXISTS', KEYS[i]) == 1 then alive = alive .. ' ' .. ARGV[i] end
end
` + drop + `
if alive == '' then
  redis.call('DEL', KEYS[6], KEYS[4], KEYS[2])
  redis.call('HDEL', KEYS[3], 'asked')
  redis.call('HSET', KEYS[3], 'hello', ARGV[4], 'nonce', ARGV[7])
  for i = 8, #ARGV do redis.call('HSET', KEYS[4], ARGV[i], ARGV[5]) end
  dropPhases(ARGV[6], KEYS[5], ARGV[5], '+inf', 8)
else
  local hello = redis.call('HGET', KEYS[3], 'hello')
  if hello ~= ARGV[4] then return {'differs', alive, hello or ''} end
  if redis.call('EXISTS', KEYS[6]) == 1 then
    return {'stopped', alive, redis.call('HGET', KEYS[6], 'agent') or '', redis.call('HGET', KEYS[6], 'reason') or ''}
  end
  local version = redis.call('HGET', KEYS[4], ARGV[1])
  if version ~= ARGV[5] then return {'version', alive, version or ''} end
end
local epoch = redis.call('HINCRBY', KEYS[1], ARGV[1], 1)
redis.call('SET', KEYS[7], ARGV[2], 'PX', ARGV[3])
return {'joined', tostring(epoch), redis.call('HGET', KEYS[3], 'nonce')}
`)
