-- buffer_message: keep one message, move its conversation's timer, say whether a processor must be started.
--
-- KEYS[1]  {b<shard>}:pending     zset  conversation -> due_at_ms, never later than the true due time
-- KEYS[2]  {b<shard>}:moved       hash  conversation -> true due_at_ms, where it is later than pending says
-- KEYS[3]  {b<shard>}:processor   hash  the shard's lease and start reservation
-- KEYS[4]  {b<shard>}:wake        list  at most one element
-- KEYS[5]  {b<shard>}:conv:<id>   hash  state of the conversation's open buffer
-- KEYS[6]  {b<shard>}:msgs:<id>   list  buffered payloads, oldest first
-- KEYS[7]  {b<shard>}:seen:<id>   zset  message id -> arrived_at_ms
-- ARGV[1]  now_ms                 int
-- ARGV[2]  conversation           str
-- ARGV[3]  message_id             str   the provider's, unique in its conversation
-- ARGV[4]  payload                bytes opaque
-- ARGV[5]  silence_ms             int
-- ARGV[6]  typing_ms              int   a gap shorter than this means: still typing
-- ARGV[7]  max_wait_ms            int
-- ARGV[8]  max_messages           int
-- ARGV[9]  min_messages           int
-- ARGV[10] flush_reason           str   '' = wait; otherwise due now, for this reason
-- ARGV[11] adaptive_k             float deviations above the author's mean gap; 0 = off
-- ARGV[12] adaptive_floor_ms      int
-- ARGV[13] adaptive_ceiling_ms    int
-- ARGV[14] seen_ms                int   how long a message id is remembered
-- ARGV[15] start_id               str   this call, the same again on a retry of it
-- ARGV[16] start_ms               int   how long a start reservation stands
-- ARGV[17] horizon_ms             int   work due later than this is left to the watchdog
-- Returns  {"BUFFERED", due_at_ms, count, generation, start} | {"DUPLICATE", due_at_ms | -1, count, generation, start}
-- Repeat   answers DUPLICATE, with the same start reservation
-- Keeps    due <= first arrival + max wait, or the end of a hold; a frozen batch's retry is not moved

local pending_key, moved_key, processor_key, wake_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local conv_key, msgs_key, seen_key = KEYS[5], KEYS[6], KEYS[7]
local now_ms, conversation, message_id, payload = tonumber(ARGV[1]), ARGV[2], ARGV[3], ARGV[4]
local silence_ms, typing_ms, max_wait_ms = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local max_messages, min_messages, flush_reason = tonumber(ARGV[8]), tonumber(ARGV[9]), ARGV[10]
local adaptive_k, floor_ms, ceiling_ms = tonumber(ARGV[11]), tonumber(ARGV[12]), tonumber(ARGV[13])
local seen_ms, start_id, start_ms, horizon_ms = tonumber(ARGV[14]), ARGV[15], tonumber(ARGV[16]), tonumber(ARGV[17])

local conv = redis.call('HMGET', conv_key,
  'first_at', 'last_at', 'due_at', 'why', 'generation', 'frozen', 'held_until', 'gap_mean', 'gap_dev')
local first_at, last_at, due_at, why = tonumber(conv[1]), tonumber(conv[2]), tonumber(conv[3]), conv[4]
local generation = tonumber(conv[5]) or 0

local word, count = 'BUFFERED', 0
if redis.call('ZADD', seen_key, 'NX', now_ms, message_id) == 0 then
  word, count = 'DUPLICATE', redis.call('LLEN', msgs_key)
else
  count = redis.call('RPUSH', msgs_key, payload)
  generation = generation + 1
  -- Hosts' clocks differ; inside one conversation time never runs back.
  local arrived_at = now_ms
  if last_at and last_at > now_ms then arrived_at = last_at end
  local gap_ms = last_at and arrived_at - last_at
  local old_due_at = due_at
  if count == 1 then
    first_at, old_due_at = arrived_at, nil
    -- Nothing that belongs to a waiting message may expire or be evicted.
    redis.call('PERSIST', conv_key)
    redis.call('PERSIST', seen_key)
    redis.call('ZREMRANGEBYSCORE', seen_key, '-inf', now_ms - seen_ms)
  end

  local wait_ms, mean, dev = silence_ms, tonumber(conv[8]), tonumber(conv[9])
  -- Smoothing of RFC 6298, over gaps short enough to belong to one thought.
  if adaptive_k > 0 and gap_ms and gap_ms <= ceiling_ms then
    if mean then
      dev = 0.75 * dev + 0.25 * math.abs(mean - gap_ms)
      mean = 0.875 * mean + 0.125 * gap_ms
    else
      mean, dev = gap_ms, gap_ms / 2
    end
    redis.call('HSET', conv_key, 'gap_mean', string.format('%.1f', mean), 'gap_dev', string.format('%.1f', dev))
  end
  if adaptive_k > 0 and mean then
    wait_ms = math.max(floor_ms, math.min(ceiling_ms, math.ceil(mean + adaptive_k * dev)))
  elseif count > 1 and gap_ms < typing_ms and wait_ms < typing_ms then
    wait_ms = typing_ms
  end

  if not old_due_at or old_due_at > now_ms then
    local latest_at = first_at + max_wait_ms
    due_at, why = arrived_at + wait_ms, 'silence'
    if count < min_messages or due_at >= latest_at then due_at, why = latest_at, 'max_wait' end
    if count >= max_messages and due_at > now_ms then due_at, why = now_ms, 'max_messages' end
    if flush_reason ~= '' and due_at > now_ms then due_at, why = now_ms, flush_reason end
    local held_until = tonumber(conv[7])
    if held_until and held_until > now_ms and due_at < held_until then due_at, why = held_until, 'hold' end
  end -- what is due already stays due: the message joins its batch

  if count == 1 then
    redis.call('HSET', conv_key, 'first_at', first_at, 'last_at', arrived_at, 'due_at', due_at, 'why', why, 'generation', generation)
  else
    redis.call('HSET', conv_key, 'last_at', arrived_at, 'due_at', due_at, 'why', why, 'generation', generation)
  end
  -- With a frozen batch the conversation's schedule is that batch's; complete_batch schedules this buffer.
  if not conv[6] then
    if count == 1 then
      redis.call('ZADD', pending_key, due_at, conversation)
    elseif due_at ~= old_due_at then
      -- The timer moves lazily: pending is touched only to bring a time forward, claim_due applies the rest.
      redis.call('HSET', moved_key, conversation, due_at)
      if due_at < old_due_at then redis.call('ZADD', pending_key, 'XX', due_at, conversation) end
    end
  end
end

local start = 0
if due_at then
  -- begin wanted (the same lines in every script that schedules; a test compares them)
  local processor = redis.call('HMGET', processor_key, 'expires_at', 'starting_until', 'starting_by', 'wake_at')
  if (tonumber(processor[1]) or 0) > now_ms then
    if due_at < (tonumber(processor[4]) or 0) then
      redis.call('HSET', processor_key, 'wake_at', 0)
      redis.call('LPUSH', wake_key, 1)
    end
  elseif due_at <= now_ms + horizon_ms and ((tonumber(processor[2]) or 0) <= now_ms or processor[3] == start_id) then
    redis.call('HSET', processor_key, 'starting_until', now_ms + start_ms, 'starting_by', start_id)
    start = 1
  end
  -- end wanted
end
return {word, due_at or -1, count, generation, start}
