-- Begins the lease of KEYS[1] anew, where the token holds it pending.
-- ARGV: counted token, lease in ms or ''.
-- Answers k (renewed), n (nothing holds it), l (another token, or done) or
-- b (no record of ours), and the server's time.
local time = redis.call('time')
local now = string.sub('000000000' .. time[1], -10) .. string.sub('00000' .. time[2], -6)

local held = redis.pcall('get', KEYS[1])
if type(held) == 'table' then return held end -- WRONGTYPE, or no right to read
if not held then return 'n' .. now end
if string.match(held, '^idm1 [pd]%S %d+ ()%d+:') ~= 26 then return 'b' .. now end
if string.sub(held, 26, 25 + #ARGV[1]) ~= ARGV[1] or string.sub(held, 6, 6) ~= 'p' then
  return 'l' .. now
end

local value = string.sub(held, 1, 8) .. now .. string.sub(held, 25)
if ARGV[2] == '' then
  redis.call('set', KEYS[1], value)
else
  redis.call('set', KEYS[1], value, 'px', ARGV[2])
end
return 'k' .. now
