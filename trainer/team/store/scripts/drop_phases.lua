-- KEYS: phases
-- ARGV: prefix agents...
--
-- Defines dropPhases, which deletes the keys of a range of phases, except the counts of lost workers. It forms the names of the keys from
-- the prefix, whose hash tag keeps them on one node.

local function dropPhases(from, to)
  for _, phase in ipairs(redis.call('ZRANGEBYSCORE', phases, from, to)) do
    for _, kind in ipairs({'plan', 'call', 'result', 'outcome', 'trajectories', 'part', 'manifest'}) do
      redis.call('UNLINK', prefix .. kind .. ':' .. phase)
    end
    for _, name in ipairs(agents) do
      redis.call('UNLINK', prefix .. 'stream:' .. phase .. ':' .. name)
    end
    redis.call('ZREM', phases, phase)
  end
end
