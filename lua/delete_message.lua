-- delete_message: remove a buffered message, and also the buffer if that was its last message.
--
-- KEYS[1]  {b<shard>}:pending      zset  conversation -> due_at_ms or earlier; the open buffer has the exact time
-- KEYS[2]  {b<shard>}:open         hash  conversation -> its open buffer; "" -> the living processor (README.md)
-- KEYS[3]  {b<shard>}:inflight     zset  conversation -> deadline_ms
-- KEYS[4]  {b<shard>}:conv:<id>    hash  facts that outlast a buffer: generation, frozen batch
-- KEYS[5]  {b<shard>}:msgs:<id>    list  buffered payloads, oldest first
-- KEYS[6]  {b<shard>}:batch:<id>   list  the frozen batch
-- KEYS[7]  {b<shard>}:seen:<id>    zset  message id -> arrived_at_ms
-- KEYS[8]  {b<shard>}:emitted:<id> zset  batch id -> its last_at_ms
-- ARGV[1]  conversation            str
-- ARGV[2]  message_id              str
-- ARGV[3]  id_line                 bytes the first line of this message's payload
-- ARGV[4]  cursor                  str   'near:0' in the first call; then the previous reply's next_cursor
-- ARGV[5]  limit                   int   search at most this many messages, newest first, after those nearby
-- ARGV[6]  page_bytes              int   after this many bytes of payloads, leave the rest to another call
-- ARGV[7]  seen_ms                 int   how long an idle conversation is remembered
-- ARGV[8]  max_emitted             int   number of batches that the conversation remembers
-- ARGV[9]  max_seen                int   number of message ids that it remembers
-- Returns  {"DELETED"} | {"FROZEN", batch_id} | {"ABSENT", known, batch_id | ""} | {"SEARCHING", next_cursor}
-- Repeat   returns ABSENT
-- Keeps    a frozen batch; the id remains known, so that a redelivery does not bring the message back, unless all ids
--          that may be forgotten are those of deleted messages

local pending_key, open_key, inflight_key, conv_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local msgs_key, batch_key, seen_key, emitted_key = KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local conversation, message_id, id_line, cursor = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local limit, page_bytes, seen_ms, max_emitted = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
local max_seen = tonumber(ARGV[9])

-- include open_buffer: first_at_of, last_at_of, base_of
-- include changed_buffer: with_base
-- include find: find
-- include forget_ids: forget_ids

local position, found = find()
if not position then return found end

-- Remove the message from the nearer end, because LREM compares every message on its way.
redis.call('LREM', msgs_key, 2 * position < redis.call('LLEN', msgs_key) and 1 or -1, found)
local buffer, remaining = redis.call('HGET', open_key, conversation), redis.call('LLEN', msgs_key)
local base = string.format('%010d', base_of(buffer) + 1) -- so that the generation, base + count, does not decrease
local frozen = redis.call('LLEN', batch_key)
if remaining > 0 then
  redis.call('HSET', open_key, conversation, with_base(buffer, base))
else
  redis.call('HDEL', open_key, conversation)
  redis.call('HDEL', conv_key, 'tail')
  redis.call('HSET', conv_key, 'generation', base, 'last_at', last_at_of(buffer))
  if frozen == 0 then
    redis.call('ZREM', pending_key, conversation)
    redis.call('ZREM', inflight_key, conversation)
    forget_ids('+inf')
    redis.call('PEXPIRE', conv_key, seen_ms)
    redis.call('PEXPIRE', seen_key, seen_ms)
  end
end
if remaining + frozen > 0 then
  -- The ids of waiting and frozen messages must stay, so forget those from before the buffer, and otherwise this id.
  if frozen == 0 then forget_ids(first_at_of(buffer) - 60001) end
  if redis.call('ZCARD', seen_key) > max_seen + remaining + frozen then redis.call('ZREM', seen_key, message_id) end
end
return {'DELETED'}
