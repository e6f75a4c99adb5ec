-- changed_buffer: change a line of the hash `open`; a line has fields of fixed width (README.md).
--
-- Defines  with_due_at(buffer, due_at, reason, rule): the line with this due time, which was set for this reason by this rule
-- Defines  with_mode(buffer, mode): the line with this mode
-- Defines  with_base(buffer, base): the line with this base, of ten digits

local function with_due_at(buffer, due_at, reason, rule)
  local why = reason .. ' ' .. rule .. ' ' .. due_at - string.sub(buffer, 14, 26)
  return string.sub(buffer, 1, 26) .. due_at .. string.sub(buffer, 40, 50) .. why
end
local function with_mode(buffer, mode) return string.sub(buffer, 1, 39) .. mode .. string.sub(buffer, 41) end
local function with_base(buffer, base) return string.sub(buffer, 1, 40) .. base .. string.sub(buffer, 51) end
