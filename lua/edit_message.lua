-- edit_message: replace a buffered message at its position, unless it has a newer edit.
--
-- KEYS[1]  {b<shard>}:conv:<id>    hash  facts that outlast a buffer: generation, frozen batch
-- KEYS[2]  {b<shard>}:msgs:<id>    list  buffered payloads, oldest first
-- KEYS[3]  {b<shard>}:batch:<id>   list  the frozen batch
-- KEYS[4]  {b<shard>}:seen:<id>    zset  message id -> arrived_at_ms
-- KEYS[5]  {b<shard>}:emitted:<id> zset  batch id -> its last_at_ms
-- KEYS[6]  {b<shard>}:open         hash  conversation -> its open buffer; "" -> the living processor (README.md)
-- ARGV[1]  message_id              str
-- ARGV[2]  id_line                 bytes the first line of this message's payload
-- ARGV[3]  payload                 bytes opaque
-- ARGV[4]  cursor                  str   'near:0' in the first call; then the previous reply's next_cursor
-- ARGV[5]  limit                   int   search at most this many messages, newest first, after those nearby
-- ARGV[6]  page_bytes              int   after this many bytes of payloads, leave the rest to another call
-- ARGV[7]  max_emitted             int   number of batches that the conversation remembers
-- ARGV[8]  conversation            str
-- ARGV[9]  max_bytes               int   bytes of large messages that may wait; a larger edit is ABSENT
-- Returns  {"EDITED", behind | -1} | {"FROZEN", batch_id} | {"ABSENT", known, batch_id | ""}
--          | {"SEARCHING", next_cursor}
-- Repeat   returns EDITED again
-- Keeps    a frozen batch; the order of the messages, and the timer

local conv_key, msgs_key, batch_key, seen_key, emitted_key, open_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local message_id, id_line, payload, cursor = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local limit, page_bytes, max_emitted = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local conversation, max_bytes = ARGV[8], tonumber(ARGV[9])

-- include find: find

local function edited_at(message) -- the time is at the beginning of the second line (wire_form.py)
  return tonumber(string.match(message, '^{"v":%d+,"editedAt":(%d+)', #id_line + 1)) or 0
end
local function large_bytes(message) return #message > 4096 and #message or 0 end

local position, found = find()
if not position then return found end
local edited = {'EDITED', redis.call('LLEN', msgs_key) - position - 1}
if edited_at(payload) < edited_at(found) then return {'EDITED', -1} end
local more = large_bytes(payload) - large_bytes(found)
if more ~= 0 then
  local first_at = string.sub(redis.call('HGET', open_key, conversation), 1, 13)
  local large = redis.call('HGET', conv_key, 'large') or ''
  local bytes = more + (string.sub(large, 1, 13) == first_at and string.sub(large, 14) or 0)
  if more > 0 and bytes > max_bytes then return {'ABSENT', 1, ''} end
  redis.call('HSET', conv_key, 'large', first_at .. bytes)
end
redis.call('LSET', msgs_key, position, payload)
return edited
