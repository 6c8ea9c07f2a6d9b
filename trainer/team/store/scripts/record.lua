-- KEYS: records
-- ARGV: kept record
--
-- Appends a record of the run's numbers, and drops the oldest ones. kept is the approximate number of records that stay.

redis.call('XADD', records, 'MAXLEN', '~', kept, '*', 'agent', agent, 'record', record)
return {'new'}
