-- Hands ends of exchanges over to those whose exchanges they are, and fetches one's own.
--
-- KEYS[1]    sorted set of the Tidegates that are alive
-- KEYS[2]    since when this Redis knows who is alive; after a restart or a FLUSHALL it knows nobody
-- KEYS[3]    my stream
-- KEYS[4..]  the streams of others
-- ARGV       seconds after which one is dead; the last entry of my stream that I have; then for each of
--            the others: the name, and what it is told
-- Returns    since when it knows; the names of those that are not alive, who were told nothing; then
--            number and content of each new entry of my stream

if redis.replicate_commands then redis.replicate_commands() end

local KEEP, MOST = 60, 1000

local lifetime, last = tonumber(ARGV[1]), ARGV[2]
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000

redis.call('SET', KEYS[2], string.format('%.6f', now), 'NX')
local since = redis.call('GET', KEYS[2])
local news = tonumber(since) > now - lifetime

local dead = {}
for i = 4, #KEYS do
  local name, told = ARGV[2 * i - 5], ARGV[2 * i - 4]
  local heard = redis.call('ZSCORE', KEYS[1], name)
  if news or (heard and tonumber(heard) > now - lifetime) then
    redis.call('XADD', KEYS[i], '*', 'ends', told)
    redis.call('EXPIRE', KEYS[i], KEEP)
  else
    dead[#dead + 1] = name
  end
end

-- What I have said that I have is not needed any more.
for _, entry in ipairs(redis.call('XRANGE', KEYS[3], '-', last, 'COUNT', MOST)) do
  redis.call('XDEL', KEYS[3], entry[1])
end
local reply = {since, dead}
local fresh = redis.call('XREAD', 'COUNT', MOST, 'STREAMS', KEYS[3], last)
for _, entry in ipairs(fresh and fresh[1][2] or {}) do
  reply[#reply + 1] = entry[1]
  reply[#reply + 1] = entry[2][2]
end
return reply
