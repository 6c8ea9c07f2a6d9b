-- KEYS: plan stream claimed lost
-- ARGV: phase position limit
--
-- Returns the entries that follow the worker's position in its agent's stream, and stores the claims. Returns fewer entries than the limit,
-- and whether more entries follow. Returns with each entry how many workers were lost while they had claimed it. The same position results
-- in the same entries, and perhaps later ones, so a claim whose reply was lost can be repeated.

local found = redis.call('XRANGE', stream, position, '+', 'COUNT', limit)
if not found[1] then
  if redis.call('HGET', plan, 'ended') then return {'ended'} end
  return {'none'}
end
local more = #found == tonumber(limit)
local reply = {'entries', more and 'more' or ''}
for i = 1, more and #found - 1 or #found do
  local entry, id, value = found[i][1], found[i][2][2] or '', found[i][2][4] or ''
  redis.call('HSET', claimed, phase .. ' ' .. id, entry)
  for _, part in ipairs({entry, value, id, redis.call('HGET', lost, id) or '0'}) do reply[#reply + 1] = part end
end
return reply
