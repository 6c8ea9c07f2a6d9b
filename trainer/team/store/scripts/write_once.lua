-- KEYS: hash phases
-- ARGV: field value phase step
--
-- Writes a value once, and remembers its phase for Trim. The script continues only with a new value. hash has the values by field, and
-- phases the phases by step.

local stored = redis.call('HGET', hash, field)
if stored then
  if stored == value then return {'same'} end
  return {'conflict'}
end
redis.call('HSET', hash, field, value)
redis.call('ZADD', phases, step, phase)
