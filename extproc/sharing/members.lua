-- Who is alive, and what each has to tell the others.
--
-- KEYS[1]  sorted set of the Tidegates, by when they were heard last (the server's Unix time, seconds)
-- KEYS[2]  hash: what each has told last
-- ARGV     my name; seconds after which one is dead; what I tell
-- Returns  how many are alive, I among them; 1 if I was not yet; then what each of the others has told

if redis.replicate_commands then redis.replicate_commands() end

local me, lifetime, word = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000

for _, dead in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now - lifetime)) do
  redis.call('ZREM', KEYS[1], dead)
  redis.call('HDEL', KEYS[2], dead)
end
local new = redis.call('ZADD', KEYS[1], string.format('%.6f', now), me)
redis.call('HSET', KEYS[2], me, word)

local told = {redis.call('ZCARD', KEYS[1]), new}
local fields = redis.call('HGETALL', KEYS[2])
for i = 1, #fields, 2 do
  if fields[i] ~= me then told[#told + 1] = fields[i + 1] end
end
return told
