-- Reads KEYS[1] and how long it has to live, at one moment of the server's time.
-- Answers the server's time alone, or with the value and its lifetime in ms
-- (-1: for ever).
local time = redis.call('time')
local now = string.sub('000000000' .. time[1], -10) .. string.sub('00000' .. time[2], -6)

local held = redis.pcall('get', KEYS[1])
if type(held) == 'table' then return held end -- WRONGTYPE, or no right to read
if not held then return {now} end
return {now, held, redis.call('pttl', KEYS[1])}
