-- open_line: cut an open buffer's line into its fields, which have a fixed width (README.md).
--
-- The fields remain strings, because most are only copied. A script that needs only some uses include/open_buffer.
--
-- Reads    buffer, sub
-- Sets     first_at: arrival of the first message
-- Sets     last_at: arrival of the last message
-- Sets     old_due_at: due time, a number, because scripts compare it
-- Sets     mode: '-' ordinary, 'h' a hold is known, 'f' behind a frozen batch
-- Sets     rest: the mode and the base of the generation, as the line has them
-- Sets     why: '<reason> <rule> <wait_ms>': why the buffer is due at its due time

first_at, last_at, old_due_at = sub(buffer, 1, 13), sub(buffer, 14, 26), sub(buffer, 27, 39) + 0
mode, rest, why = sub(buffer, 40, 40), sub(buffer, 40, 50), sub(buffer, 51)
