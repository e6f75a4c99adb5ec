-- exclude_messages: record which of the batch's messages the DynamoDB lane emits, so that every attempt leaves them out.
--
-- KEYS[1]  {b<shard>}:taken:<id>  hash  the frozen batch's id, times and owner
-- ARGV[1]  token                  str   the token that took the batch
-- ARGV[2]  left_out               str   positions in the batch, from 0, with spaces between them
-- Returns  {"EXCLUDED"} | {"STALE"}
-- Repeat   returns EXCLUDED again, until another conversation processor has taken the batch
-- Keeps    the positions that were recorded first; the batch's id and messages

local taken_key = KEYS[1]
local token, left_out = ARGV[1], ARGV[2]

local taken = redis.call('HMGET', taken_key, 'token', 'left_out')
if taken[1] ~= token then return {'STALE'} end
if taken[2] then return {'EXCLUDED'} end

-- Begin with a command that only removes, because a full server refuses a script whose first write might need memory.
redis.call('HDEL', taken_key, 'left_out')
redis.call('HSET', taken_key, 'left_out', left_out)
return {'EXCLUDED'}
