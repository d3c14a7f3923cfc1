-- Names the class of a call in a header, as extproc/edge/identity.py and extproc/core/classes.py do.
--
-- Rules this script keeps:
--   * Only configured sources are asked, in order; the first that answers wins.
--   * Who is named by nobody is the default tenant. An ambiguous name, a doubled header, is of the
--     lowest class. An untrusted header raises nobody.
--   * A strict class gets no header: nothing of the valve ever looks at its calls.
--   * A key is hashed at once and never kept; the map has its digest.
--   * An error here is an open valve.
--
-- Before it stand SOURCES, TENANTS, DEFAULT, DEFAULT_TENANT, LOWEST, LONGEST,
-- LONGEST_KEY, HEADER, NAMESPACE.

local band, bor, bxor, bnot = bit.band, bit.bor, bit.bxor, bit.bnot
local ror, rshift, tohex, tobit = bit.ror, bit.rshift, bit.tohex, bit.tobit

local function fractions(power, count)
  -- FIPS 180-4: the first 32 bits of the fractional parts of roots of the first primes.
  local found, number = {}, 2
  while #found < count do
    local prime = true
    for at = 2, math.floor(math.sqrt(number)) do
      if number % at == 0 then prime = false break end
    end
    if prime then found[#found + 1] = tobit(math.floor((number ^ power % 1) * 4294967296)) end
    number = number + 1
  end
  return found
end

local K, START = fractions(1 / 3, 64), fractions(1 / 2, 8)

local function sha256(text)
  local length = #text
  text = text .. "\128" .. ("\0"):rep((55 - length) % 64)
    .. "\0\0\0\0" .. string.char(
      band(rshift(length * 8, 24), 255), band(rshift(length * 8, 16), 255),
      band(rshift(length * 8, 8), 255), band(length * 8, 255))
  local h1, h2, h3, h4, h5, h6, h7, h8 = unpack(START)
  local w = {}
  for block = 1, #text, 64 do
    for at = 0, 15 do
      local b1, b2, b3, b4 = text:byte(block + at * 4, block + at * 4 + 3)
      w[at] = tobit(b1 * 16777216 + b2 * 65536 + b3 * 256 + b4)
    end
    for at = 16, 63 do
      local x, y = w[at - 15], w[at - 2]
      local s0 = bxor(ror(x, 7), ror(x, 18), rshift(x, 3))
      local s1 = bxor(ror(y, 17), ror(y, 19), rshift(y, 10))
      w[at] = tobit(w[at - 16] + s0 + w[at - 7] + s1)
    end
    local a, b, c, d, e, f, g, h = h1, h2, h3, h4, h5, h6, h7, h8
    for at = 0, 63 do
      local s1 = bxor(ror(e, 6), ror(e, 11), ror(e, 25))
      local t1 = tobit(h + s1 + bxor(band(e, f), band(bnot(e), g)) + K[at + 1] + w[at])
      local s0 = bxor(ror(a, 2), ror(a, 13), ror(a, 22))
      local t2 = tobit(s0 + bxor(band(a, b), band(a, c), band(b, c)))
      h, g, f, e, d, c, b, a = g, f, e, tobit(d + t1), c, b, a, tobit(t1 + t2)
    end
    h1, h2, h3, h4 = tobit(h1 + a), tobit(h2 + b), tobit(h3 + c), tobit(h4 + d)
    h5, h6, h7, h8 = tobit(h5 + e), tobit(h6 + f), tobit(h7 + g), tobit(h8 + h)
  end
  return tohex(h1) .. tohex(h2) .. tohex(h3) .. tohex(h4)
    .. tohex(h5) .. tohex(h6) .. tohex(h7) .. tohex(h8)
end

local function stripped(text)
  return text:match("^[ \t]*(.*)$"):gsub("[ \t]+$", "")
end

local function by_metadata(handle, source)
  local value = handle:streamInfo():dynamicMetadata():get(source.filter)
  for _, part in ipairs(source.path) do
    if type(value) ~= "table" then return nil end
    value = value[part]
  end
  if type(value) == "string" and value ~= "" then return { tenant = value, trusted = true } end
end

local function by_header(handle, source)
  local value = stripped(handle:headers():get(source.name) or "")
  if value == "" then return nil end
  if value:find(",", 1, true) then return { ambiguous = true } end
  return { tenant = value, trusted = source.trusted }
end

local function by_key(handle, source)
  local headers = handle:headers()
  local scheme, bearer = (headers:get("authorization") or ""):match("^([^ ]*) (.*)$")
  local keys = { headers:get("x-api-key") or "" }
  if scheme and scheme:lower() == "bearer" then table.insert(keys, 1, bearer) end
  for _, key in ipairs(keys) do
    if key ~= "" and #key <= LONGEST_KEY then
      local tenant = source.digests[sha256((stripped(key)))]
      if tenant then return { tenant = tenant, trusted = true } end
    end
  end
end

local ASKED = { metadata = by_metadata, header = by_header, key = by_key }

local function claim_of(handle)
  for _, source in ipairs(SOURCES) do
    local claim = ASKED[source.kind](handle, source)
    if claim then
      if claim.tenant and #claim.tenant > LONGEST then claim.tenant = nil end
      return claim
    end
  end
  return { trusted = true }
end

function envoy_on_request(handle)
  local claim = claim_of(handle)
  local class = TENANTS[claim.tenant or ""] or DEFAULT
  if claim.ambiguous then
    class = LOWEST
  elseif not claim.trusted and class.rank < DEFAULT.rank then
    class = DEFAULT
  end
  if class.strict then return end
  handle:headers():replace(HEADER, class.name)
  handle:streamInfo():dynamicMetadata():set(NAMESPACE, "tenant", claim.tenant or DEFAULT_TENANT)
  handle:streamInfo():dynamicMetadata():set(NAMESPACE, "class", class.name)
end
