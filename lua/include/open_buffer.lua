-- open_buffer: read a line of the hash `open`; a line has fields of fixed width (README.md).
--
-- Defines  first_at_of(buffer): arrival of the first message, in digits, because most scripts only copy it
-- Defines  last_at_of(buffer): arrival of the last message, in digits
-- Defines  due_at_of(buffer): due time, a number, because scripts compare it
-- Defines  mode_of(buffer): '-' ordinary, 'h' a hold is known, 'f' behind a frozen batch
-- Defines  base_of(buffer): generation = base + number of messages; in digits
-- Defines  why_of(buffer): '<reason> <rule> <wait_ms>': why the buffer is due at its due time

local function first_at_of(buffer) return string.sub(buffer, 1, 13) end
local function last_at_of(buffer) return string.sub(buffer, 14, 26) end
local function due_at_of(buffer) return tonumber(string.sub(buffer, 27, 39)) end
local function mode_of(buffer) return string.sub(buffer, 40, 40) end
local function base_of(buffer) return string.sub(buffer, 41, 50) end
local function why_of(buffer) return string.sub(buffer, 51) end
