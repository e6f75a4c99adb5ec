-- note_reply: remember when the first reply after the conversation's last batch was sent.
--
-- KEYS[1]  {b<shard>}:conv:<id>   hash  facts that outlast a buffer: generation, frozen batch
-- ARGV[1]  now_ms                 int
-- ARGV[2]  at_ms                  int   when the reply was sent; a time in the future counts as now
-- Returns  {"NOTED"} | {"UNKNOWN"}
-- Repeat   changes nothing
-- Keeps    the first reply after the last batch: later replies change nothing

local conv_key = KEYS[1]
local now_ms, at_ms = tonumber(ARGV[1]), tonumber(ARGV[2])

local known = redis.call('HMGET', conv_key, 'last_at', 'replied_at')
local last_at, replied_at = tonumber(known[1]), tonumber(known[2]) or 0
if not last_at then return {'UNKNOWN'} end
at_ms = math.min(at_ms, now_ms)
if replied_at <= last_at and at_ms > last_at then redis.call('HSET', conv_key, 'replied_at', at_ms) end
return {'NOTED'}
