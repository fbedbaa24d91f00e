-- Keeps KEYS[1] done, where the token holds it or nothing does.
-- ARGV: counted token, status letter, rest of the value, lifetime in ms or ''.
-- Answers k (kept), l (another token holds it) or b (no record of ours), and
-- the server's time. The value's format is in docs/formats.md.
local time = redis.call('time')
local now = string.sub('000000000' .. time[1], -10) .. string.sub('00000' .. time[2], -6)

local held = redis.pcall('get', KEYS[1])
if type(held) == 'table' then return held end -- WRONGTYPE, or no right to read
if held then
  if string.match(held, '^idm1 [pd]%S %d+ ()%d+:') ~= 26 then return 'b' .. now end
  if string.sub(held, 26, 25 + #ARGV[1]) ~= ARGV[1] then return 'l' .. now end
end

local value = 'idm1 d' .. ARGV[2] .. ' ' .. now .. ' ' .. ARGV[1] .. ARGV[3]
if ARGV[4] == '' then
  redis.call('set', KEYS[1], value)
else
  redis.call('set', KEYS[1], value, 'px', ARGV[4])
end
return 'k' .. now
