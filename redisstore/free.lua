-- Deletes KEYS[1], where the token holds it in the state given.
-- ARGV: counted token, state letter.
-- Answers k (deleted), n (nothing holds it), l (another token, or another
-- state) or b (no record of ours), and the server's time.
local time = redis.call('time')
local now = string.sub('000000000' .. time[1], -10) .. string.sub('00000' .. time[2], -6)

local held = redis.pcall('get', KEYS[1])
if type(held) == 'table' then return held end -- WRONGTYPE, or no right to read
if not held then return 'n' .. now end
if string.match(held, '^idm1 [pd]%S %d+ ()%d+:') ~= 26 then return 'b' .. now end
if string.sub(held, 26, 25 + #ARGV[1]) ~= ARGV[1] or string.sub(held, 6, 6) ~= ARGV[2] then
  return 'l' .. now
end

redis.call('del', KEYS[1])
return 'k' .. now
