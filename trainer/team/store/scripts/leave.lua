-- KEYS: lease claimed
-- ARGV: leaseToken
--
-- Deletes the lease, and the worker's claims, which it will not answer.

if redis.call('GET', lease) == leaseToken then redis.call('UNLINK', lease, claimed) end
return {'new'}
