-- find_message: return whether a message waits or is in the frozen batch, and otherwise the batch that may contain it.
--
-- KEYS[1]  {b<shard>}:conv:<id>    hash  facts that outlast a buffer: generation, frozen batch
-- KEYS[2]  {b<shard>}:msgs:<id>    list  buffered payloads, oldest first
-- KEYS[3]  {b<shard>}:batch:<id>   list  the frozen batch
-- KEYS[4]  {b<shard>}:seen:<id>    zset  message id -> arrived_at_ms
-- KEYS[5]  {b<shard>}:emitted:<id> zset  batch id -> its last_at_ms
-- ARGV[1]  message_id              str
-- ARGV[2]  id_line                 bytes the first line of this message's payload
-- ARGV[3]  cursor                  str   'near:0' in the first call; then the previous reply's next_cursor
-- ARGV[4]  limit                   int   search at most this many messages, newest first, after those nearby
-- ARGV[5]  page_bytes              int   after this many bytes of payloads, leave the rest to another call
-- ARGV[6]  max_emitted             int   number of batches that the conversation remembers
-- Returns  {"WAITING"} | {"FROZEN", batch_id} | {"ABSENT", known, batch_id | ""} | {"SEARCHING", next_cursor}
-- Repeat   reads again
-- Keeps    everything: the script only reads

local conv_key, msgs_key, batch_key, seen_key, emitted_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local message_id, id_line, cursor = ARGV[1], ARGV[2], ARGV[3]
local limit, page_bytes, max_emitted = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])

-- include find: find

local position, answer = find()
return position and {'WAITING'} or answer
