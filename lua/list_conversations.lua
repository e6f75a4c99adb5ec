-- list_conversations: return one page of the shard's conversations that have waiting messages or a frozen batch.
--
-- KEYS[1]  {b<shard>}:pending     zset  conversation -> due_at_ms or earlier; the open buffer has the exact time
-- KEYS[2]  {b<shard>}:open        hash  conversation -> its open buffer; "" -> the living processor (README.md)
-- KEYS[3]  {b<shard>}:inflight    zset  conversation -> deadline_ms
-- ARGV[1]  cursor                 str   'open:0' for the first page; then the previous page's next_cursor
-- ARGV[2]  limit                  int   read about this many, 1..1000; all of a small shard is one page
-- Returns  {"PAGE", next_cursor | "", conversations...}
-- Repeat   reads again
-- Keeps    everything: the script only reads

local pending_key, open_key, inflight_key = KEYS[1], KEYS[2], KEYS[3]
local cursor, limit = ARGV[1], math.min(tonumber(ARGV[2]), 1000)

-- List open buffers first, because a buffer remains in `open` while it moves between pending and inflight.
-- Conversations that are only in pending or inflight have a frozen batch and no newer messages.
local source, position = string.match(cursor, '^(%l+):(%d+)$')
local list_key = ({open = open_key, inflight = inflight_key, pending = pending_key})[source]
local page = redis.call(source == 'open' and 'HSCAN' or 'ZSCAN', list_key, position, 'COUNT', limit)
local next_cursor = source .. ':' .. page[1]
if page[1] == '0' then next_cursor = ({open = 'inflight:0', inflight = 'pending:0', pending = ''})[source] end

local reply = {'PAGE', next_cursor}
for i = 1, #page[2], 2 do
  local conversation = page[2][i]
  if conversation ~= '' and (source == 'open' or redis.call('HEXISTS', open_key, conversation) == 0) then
    reply[#reply + 1] = conversation
  end
end
return reply
