-- find: search for a message that waits or is frozen, reading only a few payloads in each call.
--
-- Reads    message_id, id_line, cursor, limit, page_bytes, max_emitted
-- Reads    conv_key, msgs_key, batch_key, seen_key, emitted_key
-- Defines  find(): the position and payload of a waiting message; otherwise nil and the script's reply

local function find()
  local arrived_at = redis.call('ZSCORE', seen_key, message_id)
  if not arrived_at then return nil, {'ABSENT', 0, ''} end

  -- Positions are counted from the oldest message of the frozen batch, and continue through the waiting messages.
  local frozen = redis.call('LLEN', batch_key)
  local count = frozen + redis.call('LLEN', msgs_key)
  -- This is a guess, because `seen` also has ids of cancels and deleted messages, and times of several hosts' clocks.
  local guess = math.max(0, count - 1 - redis.call('ZCOUNT', seen_key, '(' .. arrived_at, '+inf'))
  local phase, step = string.match(cursor, '^(%l+):(%d+)$')
  local bytes, cost = 0, 0
  step = tonumber(step)
  for _ = 1, 32 + limit do
    if bytes + cost > page_bytes then return nil, {'SEARCHING', phase .. ':' .. step} end
    if phase == 'near' and step == 32 then phase, step = 'before', count end
    local position = guess + (step % 2 == 0 and step / 2 or -(step + 1) / 2)
    if phase == 'near' then
      step = step + 1
    else
      -- Search from the newest to the oldest, because between two calls a message can only move to a lower position.
      step = math.min(step, count) - 1
      position = step
      if position < math.max(0, count - limit) then break end
    end
    if position >= 0 and position < count then
      local list_key, at = batch_key, position
      if position >= frozen then list_key, at = msgs_key, position - frozen end
      local payload = redis.call('LRANGE', list_key, at, at)[1]
      if string.sub(payload, 1, #id_line) == id_line then
        if list_key == msgs_key then return at, payload end
        return nil, {'FROZEN', redis.call('HGET', conv_key, 'frozen')}
      end
      cost = math.max(512, #payload) -- reading a short payload takes time, too
      bytes = bytes + cost
    end
  end

  -- The message was in the earliest batch whose last message did not arrive before the message itself.
  local earlier = redis.call('ZCOUNT', emitted_key, '-inf', arrived_at - 1)
  -- If `emitted` is full, an older batch may have been forgotten, and may have contained the message.
  if earlier == 0 and redis.call('ZCARD', emitted_key) >= max_emitted then return nil, {'ABSENT', 1, ''} end
  return nil, {'ABSENT', 1, redis.call('ZRANGE', emitted_key, earlier, earlier)[1] or ''}
end
