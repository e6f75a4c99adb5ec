-- claim_due: put back expired claims and batches, move due conversations to inflight, and plan the next call.
--
-- KEYS[1]  {b<shard>}:pending     zset  conversation -> due_at_ms or earlier; the open buffer has the exact time
-- KEYS[2]  {b<shard>}:open        hash  conversation -> its open buffer; "" -> the living processor (README.md)
-- KEYS[3]  {b<shard>}:inflight    zset  conversation -> deadline_ms
-- KEYS[4]  {b<shard>}:processor   hash  the shard's lease and start reservation
-- KEYS[5]  {b<shard>}:wake        list  at most one element
-- KEYS[6]  {b<shard>}:claimed     list  what the last claim that found something returned, for its repeat
-- ARGV[1]  now_ms                 int
-- ARGV[2]  lease_id               str
-- ARGV[3]  limit                  int   claim at most this many conversations, and put back at most this many, 1..1000
-- ARGV[4]  claim_ms               int   time that the conversation processor has to take the batch
-- ARGV[5]  max_sleep_ms           int   the processor calls again after max_sleep_ms at the latest
-- ARGV[6]  call_id                str   names this call; a retry sends the same
-- ARGV[7]  slots                  int   number of conversations that may be in flight
-- Returns  {"CLAIMED", next_due_at_ms | -1, expired, full, (conversation, due_at_ms)...} | {"LOST"}
-- Repeat   returns the same claims again, until the next claim; puts nothing back
-- Keeps    a conversation is in pending or in inflight, never in both; no more than `slots` are in flight

local pending_key, open_key, inflight_key = KEYS[1], KEYS[2], KEYS[3]
local processor_key, wake_key, claimed_key = KEYS[4], KEYS[5], KEYS[6]
local now, now_ms, lease_id, limit = ARGV[1], tonumber(ARGV[1]), ARGV[2], math.min(tonumber(ARGV[3]), 1000)
local claim_ms, max_sleep_ms, call_id, slots = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6], tonumber(ARGV[7])

-- include open_buffer: due_at_of, mode_of

local owner = redis.call('HMGET', processor_key, 'lease_id', 'claimed_by')
local alive = redis.call('HGET', open_key, '')
if owner[1] ~= lease_id or alive < now then return {'LOST'} end

local expired = {}
local next_deadline = tonumber(redis.call('ZRANGE', inflight_key, 0, 0, 'WITHSCORES')[2])
if next_deadline and next_deadline <= now_ms and owner[2] ~= call_id then
  -- include put_back_expired
  redis.call('DEL', claimed_key)
  redis.call('HSET', processor_key, 'claimed_by', call_id)
  next_deadline = tonumber(redis.call('ZRANGE', inflight_key, 0, 0, 'WITHSCORES')[2])
end

local reply = {'CLAIMED', -1, #expired, 0}
local free = slots - redis.call('ZCARD', inflight_key)
limit = math.max(math.min(limit, free), 0)
local found = redis.call('ZRANGE', pending_key, '-inf', now_ms, 'BYSCORE', 'LIMIT', 0, limit, 'WITHSCORES')
if owner[2] == call_id then
  reply = {'CLAIMED', -1, 0, 0, unpack(redis.call('LRANGE', claimed_key, 0, -1))}
elseif limit > 0 and #found > 0 then
  local conversations, scores = {}, {}
  for i = 1, #found, 2 do
    conversations[#conversations + 1], scores[#scores + 1] = found[i], tonumber(found[i + 1])
  end
  local buffers = redis.call('HMGET', open_key, unpack(conversations))
  local claimed, later = {}, {}
  for i, conversation in ipairs(conversations) do
    local due_at, buffer = scores[i], buffers[i]
    -- Later messages may have moved the due time in the open buffer. If a batch is frozen, they do not move its retry.
    if buffer and mode_of(buffer) ~= 'f' then due_at = math.max(due_at, due_at_of(buffer)) end
    local list, score = claimed, now_ms + claim_ms
    if due_at > now_ms then
      list, score = later, due_at
    else
      reply[#reply + 1], reply[#reply + 2] = conversation, due_at
    end
    list[#list + 1], list[#list + 2] = score, conversation
  end
  -- Begin with a command that only removes, because a full server refuses a script whose first write might need memory.
  redis.call('ZREM', pending_key, unpack(conversations))
  if #later > 0 then redis.call('ZADD', pending_key, unpack(later)) end
  if #claimed > 0 then
    redis.call('ZADD', inflight_key, unpack(claimed))
    next_deadline = math.min(next_deadline or math.huge, now_ms + claim_ms)
    redis.call('DEL', claimed_key)
    redis.call('RPUSH', claimed_key, unpack(reply, 5))
    redis.call('HSET', processor_key, 'claimed_by', call_id)
  end
  free = free - #claimed / 2
end

local next_due_at = tonumber(redis.call('ZRANGE', pending_key, 0, 0, 'WITHSCORES')[2])
local is_full = free <= 0 and next_due_at and next_due_at <= now_ms and next_deadline > now_ms
if next_deadline then next_due_at = math.min(next_due_at or math.huge, math.ceil(next_deadline)) end
reply[2] = next_due_at or -1
local wake_at = math.min(next_due_at or now_ms + max_sleep_ms, now_ms + max_sleep_ms)
if is_full then
  -- More is due, but no slot is free. With this wake_at, only a script that frees a slot wakes the processor.
  reply[4], wake_at = 1, '0000000000001'
end
redis.call('DEL', wake_key)
redis.call('HSET', open_key, '', string.sub(alive, 1, 13) .. wake_at)
return reply
