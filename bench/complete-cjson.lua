-- What complete would be with records that are JSON throughout: it decodes the
-- record that holds KEYS[1] to compare the token.
-- ARGV: token, the new record but for its time and last brace, lifetime in ms.
local time = redis.call('time')
local now = time[1] .. string.sub('00000' .. time[2], -6)

local held = redis.call('get', KEYS[1])
if held then
  local record = cjson.decode(held)
  if record.state ~= 'pending' and record.state ~= 'done' then return 'b' .. now end
  if record.token ~= ARGV[1] then return 'l' .. now end
end

redis.call('set', KEYS[1], ARGV[2] .. ',"at":' .. now .. '}', 'px', ARGV[3])
return 'k' .. now
