-- adaptive: unpack the argument `adaptive`, which `_adaptive` of the rules packs, and read the author's rhythm.
--
-- The argument is '<k> <floor_ms> <ceiling_ms> <floor_rule>': wait the mean gap + k deviations, within these bounds.
-- '' means off.
--
-- Reads    adaptive, conv_key
-- Sets     k: number of deviations
-- Sets     floor_ms: the shortest wait
-- Sets     ceiling_ms: the longest wait; longer gaps are not learned
-- Sets     floor_rule: the rule that sets the floor
-- Sets     mean: the mean gap, or nil if the rules are not adaptive or no gap is known
-- Sets     dev: the mean deviation from it

if adaptive ~= '' then
  k, floor_ms, ceiling_ms, floor_rule = string.match(adaptive, '(%S+) (%S+) (%S+) (%S+)')
  local rhythm = redis.call('HMGET', conv_key, 'gap_mean', 'gap_dev')
  mean, dev = tonumber(rhythm[1]), tonumber(rhythm[2])
end
