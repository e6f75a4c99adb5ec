-- pause_after: compute the pause after a death, which grows with each further death in a row.
--
-- Defines  pause_after(deaths, pause_ms, most_ms): 0 after the first death, then pause_ms, doubled with each further death

local function pause_after(deaths, pause_ms, most_ms)
  if deaths < 2 then return 0 end
  return math.floor(math.min(pause_ms * 2 ^ math.min(deaths - 2, 20), most_ms))
end
