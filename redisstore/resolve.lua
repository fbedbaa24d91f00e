-- Keeps KEYS[1] done with another receipt under a new token, where the old
-- token holds it in the state given. The fingerprint stays.
-- ARGV: counted token, state letter, new counted token, status letter, receipt,
-- lifetime in ms or ''.
-- Answers k (kept), n (nothing holds it), l (another token, or another state)
-- or b (no record of ours), and the server's time.
local time = redis.call('time')
local now = string.sub('000000000' .. time[1], -10) .. string.sub('00000' .. time[2], -6)

local held = redis.pcall('get', KEYS[1])
if type(held) == 'table' then return held end -- WRONGTYPE, or no right to read
if not held then return 'n' .. now end
if string.match(held, '^idm1 [pd]%S %d+ ()%d+:') ~= 26 then return 'b' .. now end
if string.sub(held, 26, 25 + #ARGV[3]) == ARGV[3] then
  return 'k' .. now -- the client repeats a command whose answer was lost
end
if string.sub(held, 26, 25 + #ARGV[1]) ~= ARGV[1] or string.sub(held, 6, 6) ~= ARGV[2] then
  return 'l' .. now
end

-- The counted fingerprint follows the token: " 66:1:abc...".
local from = 26 + #ARGV[1]
local length = string.match(held, '^ (%d+):', from)
if not length or #length > 9 then return 'b' .. now end
local to = from + 1 + #length + tonumber(length)
if to > #held then return 'b' .. now end

local value = 'idm1 d' .. ARGV[4] .. ' ' .. now .. ' ' .. ARGV[3] .. string.sub(held, from, to) .. ' ' .. ARGV[5]
if ARGV[6] == '' then
  redis.call('set', KEYS[1], value)
else
  redis.call('set', KEYS[1], value, 'px', ARGV[6])
end
return 'k' .. now
