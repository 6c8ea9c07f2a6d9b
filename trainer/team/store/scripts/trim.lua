-- KEYS:
-- ARGV: step prefix
--
-- Deletes the phases up to a step, and the counts of workers that were lost in them, including phases that were not begun again after a
-- new round.

for _, phase in ipairs(redis.call('ZRANGEBYSCORE', prefix .. 'losses', '-inf', step)) do
  redis.call('UNLINK', prefix .. 'lost:' .. phase)
  redis.call('ZREM', prefix .. 'losses', phase)
end
dropPhases('-inf', step)
return {'new'}
