-- edit_message: replace a buffered message at its position.
--
-- KEYS[1]  {b<shard>}:conv:<id>    hash  facts that outlast a buffer: generation, frozen batch, rhythm
-- KEYS[2]  {b<shard>}:msgs:<id>    list  buffered payloads, oldest first
-- KEYS[3]  {b<shard>}:batch:<id>   list  the frozen batch
-- KEYS[4]  {b<shard>}:seen:<id>    zset  message id -> arrived_at_ms
-- KEYS[5]  {b<shard>}:emitted:<id> zset  batch id -> its last_at_ms
-- ARGV[1]  message_id              str
-- ARGV[2]  id_line                 bytes the first line of this message's payload
-- ARGV[3]  payload                 bytes opaque
-- ARGV[4]  cursor                  str   'near:0' in the first call; then the previous reply's next_cursor
-- ARGV[5]  limit                   int   search at most this many messages, newest first, after those nearby
-- ARGV[6]  page_bytes              int   after this many bytes of payloads, leave the rest to another call
-- ARGV[7]  max_emitted             int   number of batches that the conversation remembers
-- Returns  {"EDITED", behind} | {"FROZEN", batch_id} | {"ABSENT", known, batch_id | ""}
--          | {"SEARCHING", next_cursor}
-- Repeat   returns EDITED again
-- Keeps    a frozen batch; the order of the messages, and the timer

local conv_key, msgs_key, batch_key, seen_key, emitted_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local message_id, id_line, payload, cursor = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local limit, page_bytes, max_emitted = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])

-- include find: find

local position, answer = find()
if not position then return answer end
redis.call('LSET', msgs_key, position, payload)
return {'EDITED', redis.call('LLEN', msgs_key) - position - 1}
