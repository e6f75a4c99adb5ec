-- start_or_wake: wake the living processor if it sleeps past `due_at`; if none is alive, reserve a start.
--
-- Reads    alive, due_at, now, now_ms, start_id, start_ms, horizon_ms, open_key, processor_key, wake_key
-- Sets     start: 1 if the caller must start a processor

if alive and alive > now then -- `alive` begins with the 13 digits of the lease's last millisecond
  if due_at - string.sub(alive, 14) < 0 then
    -- Begin with a command that only removes, because a full server refuses a script whose first write might need memory.
    redis.call('DEL', wake_key)
    redis.call('LPUSH', wake_key, 1)
    redis.call('HSET', open_key, '', string.sub(alive, 1, 13) .. '0000000000000')
  end
elseif due_at <= now_ms + horizon_ms then
  local starting = redis.call('HMGET', processor_key, 'starting_until', 'starting_by')
  local ahead_ms = (starting[1] or 0) - now_ms -- if far ahead, a wrong clock made the reservation
  if ahead_ms <= 0 or ahead_ms > 2 * start_ms or starting[2] == start_id then
    redis.call('HDEL', processor_key, 'starting_by')
    redis.call('HSET', processor_key, 'starting_until', now_ms + start_ms, 'starting_by', start_id)
    start = 1
  end
end
