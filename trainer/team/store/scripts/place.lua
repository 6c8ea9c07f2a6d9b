-- KEYS:
-- ARGV:
--
-- Only checks the fencing token.

return {'yours'}
