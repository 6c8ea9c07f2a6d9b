-- KEYS: lease stop
-- ARGV: leaseToken milliseconds
--
-- Renews a lease. Also returns whether the round was stopped, in case the published message was lost.

redis.call('SET', lease, leaseToken, 'PX', milliseconds)
if redis.call('EXISTS', stop) == 1 then return {'stopped'} end
return {'new'}
