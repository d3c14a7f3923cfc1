-- A document that all agree on: of all that were told, the one that ranks highest.
--
-- KEYS[1]  hash: rank and document
-- ARGV     the rank of mine, and mine
-- Returns  the document that ranks higher than mine, or nothing

local known = redis.call('HMGET', KEYS[1], 'rank', 'document')
if known[1] and known[1] > ARGV[1] then return known[2] end
if known[1] ~= ARGV[1] then
  redis.call('HSET', KEYS[1], 'rank', ARGV[1], 'document', ARGV[2])
end
return false
