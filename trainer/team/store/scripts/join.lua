-- KEYS: epochs events meta versions stop offers record claimed ready finished lease leases...
-- ARGV: agent leaseToken milliseconds agreement ownOffers prefix nonce repeatable ownVersions process complete agents...
--
-- Gives an agent's place to a worker. leases... and agents... have the same order. repeatable and complete are 1 or 0, and ownVersions are
-- the versions of ownOffers, separated by spaces.
--
-- If no worker is alive, the worker begins a round: its agreement is stored, and the epochs of all agents increase, so that suspended
-- workers of earlier rounds are fenced. The data of earlier rounds are deleted, except the record and the numbers of workers that were lost
-- while they had claimed invocations. Every other worker must have an equal agreement. A worker that follows a lost worker within the round
-- takes over its place and reads its streams from the beginning, or rewinds the team.

local own = redis.call('GET', lease)
if own == leaseToken then
  return {'joined', redis.call('HGET', epochs, agent), redis.call('HGET', meta, 'nonce')}
end
if own then return {'taken', ''} end
local alive = ''
for i, name in ipairs(agents) do
  if redis.call('EXISTS', leases[i]) == 1 then alive = alive .. ' ' .. name end
end
if alive == '' and complete == '1' then
  local over = true
  for _, name in ipairs(agents) do over = over and redis.call('HEXISTS', finished, name) == 1 end
  if over then return {'over'} end
end
-- Each invocation that the last worker had claimed may be the reason why it was lost, so its count of lost workers goes
-- up. If this process had the place itself, no worker was lost.
if redis.call('HGET', epochs, ':process:' .. agent) ~= process then
  for _, claim in ipairs(redis.call('HKEYS', claimed)) do
    local phase, id = string.match(claim, '^(%S+) (.*)$')
    local step = phase and string.match(phase, '%-(%d+)$')
    if step then
      redis.call('HINCRBY', prefix .. 'lost:' .. phase, id, 1)
      redis.call('ZADD', prefix .. 'losses', step, phase)
    end
  end
end
redis.call('UNLINK', claimed)
local function place()
  local epoch = redis.call('HINCRBY', epochs, agent, 1)
  redis.call('HSET', epochs, ':process:' .. agent, process)
  redis.call('HSET', offers, agent, ownOffers)
  redis.call('SET', lease, leaseToken, 'PX', milliseconds)
  redis.call('PUBLISH', events, 'offers')
  return {'joined', tostring(epoch), redis.call('HGET', meta, 'nonce')}
end
if alive == '' then
  dropPhases('-inf', '+inf')
  redis.call('UNLINK', versions, stop, offers, ready, finished)
  redis.call('HDEL', meta, 'asked', 'afresh')
  redis.call('HSET', meta, 'agreement', agreement, 'nonce', nonce)
  local round = redis.call('HINCRBY', meta, 'round', 1)
  redis.call('HSET', epochs, ':nonce', nonce)
  for _, name in ipairs(agents) do redis.call('HINCRBY', epochs, name, 1) end
  redis.call('XADD', record, 'MAXLEN', '~', '1000000', '*', 'event', 'round', 'round', round, 'agent', agent)
  return place()
end
if redis.call('EXISTS', stop) == 1 then
  return {'stopping', alive, redis.call('HGET', stop, 'agent') or '', redis.call('HGET', stop, 'reason') or ''}
end
local stored = redis.call('HGET', meta, 'agreement')
if stored ~= agreement then return {'differs', alive, stored or ''} end
local offered, version = redis.call('HGET', offers, agent), redis.call('HGET', versions, agent)
if not offered then return place() end
local again = offered == ownOffers
if version then
  local function has(state) return string.find(' ' .. ownVersions .. ' ', ' ' .. state .. ' ', 1, true) end
  local beginning = version == '0' and redis.call('HGET', meta, 'afresh')
  again = repeatable == '1' and (has(version) or beginning and has('afresh'))
end
if not again then
  local reason = 'its worker was lost, and the successor cannot continue from version ' .. (version or '(none yet)')
  redis.call('HSET', stop, 'agent', agent, 'reason', reason, 'kind', 'rewind')
  redis.call('PUBLISH', events, 'stop')
  return {'stopping', alive, agent, reason}
end
return place()
