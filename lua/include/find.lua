-- find: look for a message in a list of payloads, and build the reply for a message that is in no list.
--
-- Reads    id_line, limit, message_id, max_emitted, seen_key, emitted_key
-- Defines  find(list_key): the message's position and payload, or nothing; absent(): the reply ABSENT

local function find(list_key)
  local payloads = redis.call('LRANGE', list_key, -limit, -1)
  local before = math.max(0, redis.call('LLEN', list_key) - limit)
  for i = #payloads, 1, -1 do
    if string.sub(payloads[i], 1, #id_line) == id_line then return before + i - 1, payloads[i] end
  end
end

local function absent()
  local arrived_at = redis.call('ZSCORE', seen_key, message_id)
  if not arrived_at then return {'ABSENT', 0, ''} end
  -- The message was in the earliest batch whose last message arrived at the same time as this one, or later.
  local earlier = redis.call('ZCOUNT', emitted_key, '-inf', arrived_at - 1)
  -- If older batches may have been forgotten, the message may have been in one of those instead.
  if earlier == 0 and redis.call('ZCARD', emitted_key) >= max_emitted then return {'ABSENT', 1, ''} end
  return {'ABSENT', 1, redis.call('ZRANGE', emitted_key, earlier, earlier)[1] or ''}
end
