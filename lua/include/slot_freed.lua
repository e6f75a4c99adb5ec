-- slot_freed: wake the processor if it waits for a slot, because a conversation has left `inflight`.
--
-- Reads    alive, now, open_key, wake_key
-- Sets     alive: the new line of the processor, if the processor was woken

if alive and alive > now and string.sub(alive, 14) == '0000000000001' then
  redis.call('DEL', wake_key)
  redis.call('LPUSH', wake_key, 1)
  alive = string.sub(alive, 1, 13) .. '0000000000000'
  redis.call('HSET', open_key, '', alive)
end
