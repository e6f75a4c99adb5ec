-- settle_batch: write down which of the batch's messages another lane emits; no attempt decides that anew.
--
-- KEYS[1]  {b<shard>}:taken:<id>  hash  the frozen batch's identity and executor
-- ARGV[1]  token                  str   the one that took the batch
-- ARGV[2]  left_out               str   positions in the batch, from 0, with spaces between them
-- Returns  {"SETTLED"} | {"STALE"}
-- Repeat   SETTLED again, until somebody else has taken the batch
-- Keeps    what was settled first; id and messages of the batch

local taken_key = KEYS[1]
local token, left_out = ARGV[1], ARGV[2]

local taken = redis.call('HMGET', taken_key, 'token', 'left_out')
if taken[1] ~= token then return {'STALE'} end
if taken[2] then return {'SETTLED'} end

-- A removing command first: when memory is full the server refuses a script whose first write could grow.
redis.call('HDEL', taken_key, 'left_out')
redis.call('HSET', taken_key, 'left_out', left_out)
return {'SETTLED'}
