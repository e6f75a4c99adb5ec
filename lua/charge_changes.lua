-- charge_changes: charge changes and control words to the quotas of their account, door and tenant.
--
-- KEYS[1]  {b<shard>}:quota       hash  account, door or tenant -> until when its quota is used up (README.md)
-- ARGV[1]  now_ms                 int
-- ARGV[2]  limits                 str   as in buffer_message, with the cost of all of them
-- Returns  {"CHARGED"} | {"REFUSED", reason, wait_ms}
-- Repeat   charges again
-- Keeps    all are charged, or none; a full quota admits any number

local call = redis.call
local quota_key = KEYS[1]
local now_ms, limits = tonumber(ARGV[1]), ARGV[2]

local every, buffer, refused, wait_ms = '1', true, nil, 0 -- charge as for one message of an open buffer
local max_waiting, due_bytes, max_bytes, quotas
-- include limits
-- A full server refuses a script whose first write might need memory, and stop words and deletions free memory. So begin
-- with a command that only removes.
call('HDEL', quota_key, '')
-- include charge_quota
if refused then return {'REFUSED', refused, wait_ms} end
return {'CHARGED'}
