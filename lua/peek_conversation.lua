-- peek_conversation: return a conversation's state without changing it.
--
-- KEYS[1]  {b<shard>}:pending     zset  conversation -> due_at_ms or earlier; the open buffer has the exact time
-- KEYS[2]  {b<shard>}:open        hash  conversation -> its open buffer; "" -> the living processor (README.md)
-- KEYS[3]  {b<shard>}:inflight    zset  conversation -> deadline_ms
-- KEYS[4]  {b<shard>}:conv:<id>   hash  facts that outlast a buffer: generation, frozen batch
-- KEYS[5]  {b<shard>}:msgs:<id>   list  buffered payloads, oldest first
-- KEYS[6]  {b<shard>}:batch:<id>  list  the frozen batch
-- KEYS[7]  {b<shard>}:taken:<id>  hash  the frozen batch's id, times and owner
-- KEYS[8]  {b<shard>}:holds       hash  people/<id>, consumers/<id>, handoff/<id> -> end, a blank, cause
-- ARGV[1]  conversation           str
-- ARGV[2]  limit                  int   return at most this many payloads, oldest first, 0..64
-- Returns  {"IDLE" | "PENDING" | "INFLIGHT", due_at_ms | -1, why | "", count, first_at_ms | -1, last_at_ms | -1,
--           generation, people | "", consumers | "", handoff | "", batch_id | "", attempt, frozen,
--           payloads...}
-- Repeat   reads again
-- Keeps    everything: the script only reads

local pending_key, open_key, inflight_key, conv_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local msgs_key, batch_key, taken_key, holds_key = KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local conversation, limit = ARGV[1], math.min(tonumber(ARGV[2]), 64)

-- include open_buffer: first_at_of, last_at_of, due_at_of, base_of, why_of

local word = 'PENDING'
if not redis.call('ZSCORE', pending_key, conversation) then
  word = redis.call('ZSCORE', inflight_key, conversation) and 'INFLIGHT' or 'IDLE'
end
local buffer, count = redis.call('HGET', open_key, conversation), redis.call('LLEN', msgs_key)
local conv = redis.call('HMGET', conv_key, 'last_at', 'generation', 'frozen')
local first_at, last_at, due_at, generation, why = -1, tonumber(conv[1]) or -1, -1, tonumber(conv[2]) or 0, ''
if buffer then
  first_at, last_at = tonumber(first_at_of(buffer)), tonumber(last_at_of(buffer))
  due_at, generation, why = due_at_of(buffer), base_of(buffer) + count, why_of(buffer)
end
local holds = redis.call('HMGET', holds_key, 'people/' .. conversation, 'consumers/' .. conversation,
  'handoff/' .. conversation)
return {word, due_at, why, count, first_at, last_at, generation,
  holds[1] or '', holds[2] or '', holds[3] or '', conv[3] or '',
  tonumber(redis.call('HGET', taken_key, 'attempt')) or 0, redis.call('LLEN', batch_key),
  unpack(limit > 0 and redis.call('LRANGE', msgs_key, 0, limit - 1) or {})}
