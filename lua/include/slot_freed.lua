-- slot_freed: wake the processor if it waits for a slot, because the conversation is no longer in flight.
--
-- Reads    alive, now, open_key, wake_key
-- Sets     alive: if it woke the processor, the line that says so

if alive and alive > now and string.sub(alive, 14) == '0000000000001' then
  redis.call('DEL', wake_key)
  redis.call('LPUSH', wake_key, 1)
  alive = string.sub(alive, 1, 13) .. '0000000000000'
  redis.call('HSET', open_key, '', alive)
end
