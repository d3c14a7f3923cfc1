-- The shared twin of extproc/core/limits.py, and the holds of all Tidegates. Sums are made in the same
-- order as there, so that both come to the same, to the last bit.
--
-- KEYS[1]    sorted set of the Tidegates that are alive, by when they were heard last
-- KEYS[2..]  one hash for each account: r and t, when its buckets of requests and tokens are full
--            (Unix time in seconds), and for each Tidegate what it holds of the quota
-- ARGV[1]    msgpack: my name; seconds after which one is dead; the time, or under 0 for the server's;
--            and a list of operations, in order:
--            account (index into KEYS), asks, seconds per request, window of requests, seconds per
--            token, window of tokens, requests, tokens, what is free of the quota by my books, what I
--            hold of it by others' books, seconds until the buckets are full by my books
-- Returns    msgpack: the time, and for each operation: done, r, t, what others hold
--
-- An operation that asks is done only if both buckets and the quota have enough; others always are.
-- What I hold and what my books say is absolute: after a FLUSHALL everything is there again as soon as
-- an account is used.

if redis.replicate_commands then redis.replicate_commands() end

local SLACK = 1e-6
local KEEP = 3600

local me, lifetime, now, operations = unpack(cmsgpack.unpack(ARGV[1]))
if now < 0 then
  local time = redis.call('TIME')
  now = tonumber(time[1]) + tonumber(time[2]) / 1000000
end

local lives = {}
local function alive(name)
  if lives[name] == nil then
    local heard = redis.call('ZSCORE', KEYS[1], name)
    lives[name] = heard and tonumber(heard) > now - lifetime or false
  end
  return lives[name]
end

local function exact(number) return string.format('%.17g', number) end

local accounts = {}
local function load(index, requests_full_in, tokens_full_in)
  if accounts[index] then return accounts[index] end
  local account = {others = 0, taken = 0}
  local fields = redis.call('HGETALL', KEYS[index])
  for i = 1, #fields, 2 do
    local name, value = fields[i], tonumber(fields[i + 1])
    if name == 'r' then account.r = value
    elseif name == 't' then account.t = value
    elseif name ~= me and alive(name) then account.others = account.others + value
    end
  end
  account.r = account.r or now + requests_full_in
  account.t = account.t or now + tokens_full_in
  accounts[index] = account
  return account
end

local function wait(full_at, units, interval, window)
  if interval == 0 then return 0 end
  return math.max(full_at, now) - now + math.min(units * interval, window) - window
end

local function drawn(full_at, units, interval)
  if interval == 0 then return full_at end
  return math.max(full_at, now) + units * interval
end

local replies = {}
for i, operation in ipairs(operations) do
  local index, asks, request_interval, request_window, token_interval, token_window,
    requests, tokens, free, held, requests_full_in, tokens_full_in = unpack(operation)
  local account = load(index, requests_full_in, tokens_full_in)
  local done = not asks or (
    wait(account.r, requests, request_interval, request_window) <= SLACK
    and wait(account.t, tokens, token_interval, token_window) <= SLACK
    and tokens <= free - account.others - account.taken)
  if done then
    account.r = drawn(account.r, requests, request_interval)
    account.t = drawn(account.t, tokens, token_interval)
    if asks then account.taken = account.taken + tokens end
  end
  account.held = held
  replies[i] = {done, account.r, account.t, account.others}
end

for index, account in pairs(accounts) do
  local key, held = KEYS[index], account.held + account.taken
  redis.call('HSET', key, 'r', exact(account.r), 't', exact(account.t))
  if held > 0 then redis.call('HSET', key, me, exact(held)) else redis.call('HDEL', key, me) end
  redis.call('EXPIRE', key, math.ceil(math.max(account.r - now, account.t - now, 0)) + KEEP)
end

return cmsgpack.pack({now, replies})
