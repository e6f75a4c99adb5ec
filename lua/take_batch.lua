-- take_batch: freeze a claimed conversation's messages as its batch, or return the batch that is already frozen.
--
-- KEYS[1]  {b<shard>}:open        hash  conversation -> its open buffer; "" -> the living processor (README.md)
-- KEYS[2]  {b<shard>}:inflight    zset  conversation -> deadline_ms
-- KEYS[3]  {b<shard>}:conv:<id>   hash  facts that outlast a buffer: generation, frozen batch
-- KEYS[4]  {b<shard>}:msgs:<id>   list  buffered payloads, oldest first
-- KEYS[5]  {b<shard>}:batch:<id>  list  the frozen batch
-- KEYS[6]  {b<shard>}:taken:<id>  hash  the frozen batch's id, times and owner
-- KEYS[7]  {b<shard>}:holds       hash  people/<id>, consumers/<id>, handoff/<id> -> end, a blank, cause
-- ARGV[1]  now_ms                 int
-- ARGV[2]  conversation           str
-- ARGV[3]  token                  str   unique to this run of the conversation processor
-- ARGV[4]  token_ms               int   time that the conversation processor has to complete the batch, or to renew the token
-- ARGV[5]  pause_ms               int   the second attempt's token lasts longer by this; it doubles with each attempt
-- ARGV[6]  max_pause_ms           int   no token lasts longer than token_ms by more than this
-- ARGV[7]  batch_prefix           str   first part of the batch id, unique to the conversation
-- ARGV[8]  limit                  int   put at most this many messages into one batch, 1..1000
-- ARGV[9]  max_bytes              int   put at most this many bytes of payload into one batch, but always one message
-- Returns  {"TAKEN", batch_id, attempt, until_ms, generation, first_at_ms, last_at_ms, previous_at_ms | -1,
--           replied_at_ms | -1, due_at_ms, why, tail | "", handoff | "", payloads...}
--          | {"BUSY", until_ms} | {"STALE"}
-- Repeat   returns the same batch, attempt and counts, with the mark of that moment
-- Keeps    once taken, the id and the content of a batch never change

local open_key, inflight_key, conv_key, msgs_key, batch_key, taken_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local holds_key = KEYS[7]
local now_ms, conversation, token, token_ms = tonumber(ARGV[1]), ARGV[2], ARGV[3], tonumber(ARGV[4])
local pause_ms, max_pause_ms = tonumber(ARGV[5]), tonumber(ARGV[6])
local batch_prefix, limit, max_bytes = ARGV[7], math.min(tonumber(ARGV[8]), 1000), tonumber(ARGV[9])

-- include open_buffer: first_at_of, last_at_of, due_at_of, base_of, why_of

if not redis.call('ZSCORE', inflight_key, conversation) then return {'STALE'} end
local taken = redis.call('HMGET', taken_key, 'batch_id', 'attempt', 'token', 'token_until', 'generation', 'first_at', 'last_at',
  'due_at', 'why', 'previous_at', 'replied_at', 'tail')
local batch_id, attempt, owner, token_until = taken[1], tonumber(taken[2]) or 0, taken[3], tonumber(taken[4]) or 0
local generation, first_at, last_at, due_at, why = taken[5], taken[6], taken[7], taken[8], taken[9]
local previous_at, replied_at, tail = taken[10], taken[11], taken[12]
if owner ~= token and token_until > now_ms then
  -- Another run has the batch, so replace this claim's deadline by the end of that run's token. If that run has died,
  -- its batch is put back then.
  redis.call('ZREM', inflight_key, conversation)
  redis.call('ZADD', inflight_key, token_until - 0.5, conversation)
  return {'BUSY', token_until}
end

local payloads
if not batch_id then
  local buffer, count = redis.call('HGET', open_key, conversation), redis.call('LLEN', msgs_key)
  first_at, last_at, due_at = first_at_of(buffer), last_at_of(buffer), due_at_of(buffer)
  generation, why = base_of(buffer) + count, why_of(buffer)
  local facts = redis.call('HMGET', conv_key, 'last_at', 'replied_at', 'tail')
  previous_at, replied_at, tail = facts[1] or -1, facts[2] or -1, facts[3] or ''
  batch_id = batch_prefix .. '-' .. last_at .. '-' .. generation
  -- Begin with a command that only removes, because a full server refuses a script whose first write might need memory.
  redis.call('HDEL', open_key, conversation)
  local fit, bytes, large_bytes = 0, 0, 0
  payloads = {}
  -- Read a few messages at a time until the batch is full, because all waiting messages may be larger than a batch.
  for from = 0, math.min(count, limit) - 1, 8 do
    if fit < from then break end
    for _, payload in ipairs(redis.call('LRANGE', msgs_key, from, math.min(from + 8, limit) - 1)) do
      bytes = bytes + #payload
      if fit > 0 and bytes > max_bytes then break end
      fit, large_bytes = fit + 1, large_bytes + (#payload > 4096 and #payload or 0)
      payloads[fit] = payload
    end
  end
  if fit == count then
    redis.call('RENAME', msgs_key, batch_key)
  else
    redis.call('RPUSH', batch_key, unpack(payloads))
    redis.call('LTRIM', msgs_key, fit, -1)
    -- The remaining messages form a buffer with a generation of its own, due as soon as this batch is completed.
    local base = string.format('%010d', generation + 1 - (count - fit))
    redis.call('HSET', open_key, conversation, first_at .. last_at .. now_ms .. 'f' .. base .. 'max_messages split ' .. now_ms - last_at)
    -- Subtract this batch from `large`.
    local large = redis.call('HGET', conv_key, 'large') or ''
    if string.sub(large, 1, 13) == first_at then
      redis.call('HSET', conv_key, 'large', first_at .. string.sub(large, 14) - large_bytes)
    end
  end
  redis.call('HSET', conv_key, 'frozen', batch_id, 'generation', string.format('%010d', generation), 'last_at', last_at)
  redis.call('PERSIST', conv_key)
  redis.call('HSET', taken_key, 'batch_id', batch_id, 'generation', generation,
    'first_at', first_at, 'last_at', last_at, 'due_at', due_at, 'why', why, 'previous_at', previous_at,
    'replied_at', replied_at, 'tail', tail)
end

if owner ~= token then attempt = attempt + 1 end
-- A later attempt's token lasts longer, so that a batch whose runs die is tried again after longer and longer pauses.
if attempt > 1 then token_ms = token_ms + math.min(pause_ms * 2 ^ (attempt - 2), max_pause_ms) end
token_until = now_ms + token_ms
-- Begin with a command that only removes, because a full server refuses a script whose first write might need memory.
redis.call('HDEL', taken_key, 'token_until')
redis.call('HSET', taken_key, 'attempt', attempt, 'token', token, 'token_until', token_until, 'token_ms', token_ms)
redis.call('ZADD', inflight_key, 'XX', token_until - 0.5, conversation) -- the fraction says that the batch is taken
return {'TAKEN', batch_id, attempt, token_until, tonumber(generation), tonumber(first_at), tonumber(last_at),
  tonumber(previous_at), tonumber(replied_at), tonumber(due_at), why, tail,
  redis.call('HGET', holds_key, 'handoff/' .. conversation) or '',
  unpack(payloads or redis.call('LRANGE', batch_key, 0, -1))}
