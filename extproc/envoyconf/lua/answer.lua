-- Answers a call that the valve has marked, in the shape that its endpoint's clients expect.
--
-- Rules this script keeps:
--   * What it does not plainly understand it leaves to Tidegate: it decides nothing by a guess.
--   * A call with a ticket is left to Tidegate: its place was promised.
--   * The texts are Tidegate's own replies with six slots to fill in; it knows no other.
--   * A body is looked through once and in bounded steps; no pattern searches it for a match of more
--     than one character. After body(), what headers() gave before is dead.
--   * An error here is an open valve.
--
-- Before it stand PATHS, POOLS, DEFAULT_POOL, TEMPLATES, REPLIES, ERRORS, WORDS, MESSAGES, LANGUAGE, FINISH,
-- TENANTS, MARK, CLASS, TICKET, NAMESPACE, STEPS.

local find, match, byte = string.find, string.match, string.byte
local QUOTE, BACKSLASH, OPEN, LIST = 34, 92, 123, 91

-- Bodies.

local function string_end(body, at, steps)
  while true do
    at = find(body, '["\\]', at)
    if at == nil or steps.left == 0 then return nil end
    steps.left = steps.left - 1
    if byte(body, at) == QUOTE then return at + 1 end
    at = at + 2
  end
end

local function value_end(body, at, steps)
  local first = byte(body, at)
  if first == QUOTE then return string_end(body, at + 1, steps) end
  if first ~= OPEN and first ~= LIST then return match(body, "^[%w+.-]+()", at) end
  local depth = 0
  repeat
    at = find(body, '["{}%[%]]', at)
    if at == nil or steps.left == 0 then return nil end
    steps.left = steps.left - 1
    local found = byte(body, at)
    if found == QUOTE then
      at = string_end(body, at + 1, steps)
      if at == nil then return nil end
    else
      depth = depth + ((found == OPEN or found == LIST) and 1 or -1)
      at = at + 1
    end
  until depth == 0
  return at
end

local function members(body, steps)
  -- The members of an object by name, undecoded, the last of two winning; nil where it is none.
  local found = {}
  local at = match(body, "^[ \t\r\n]*{[ \t\r\n]*()")
  if at == nil then return nil end
  if byte(body, at) == 125 then return found end
  while true do
    if byte(body, at) ~= QUOTE then return nil end
    local after = string_end(body, at + 1, steps)
    if after == nil then return nil end
    local name = body:sub(at + 1, after - 2)
    if find(name, "\\", 1, true) then return nil end
    at = match(body, "^[ \t\r\n]*:[ \t\r\n]*()", after)
    after = at and value_end(body, at, steps)
    if after == nil then return nil end
    found[name] = body:sub(at, after - 1)
    local separator
    separator, at = match(body, "^[ \t\r\n]*([,}])[ \t\r\n]*()", after)
    if separator == nil then return nil end
    if separator == "}" then return at == #body + 1 and found or nil end
  end
end

local function inner(raw, steps)
  if raw == nil or byte(raw) ~= OPEN then return {} end
  local found = members(raw, steps)
  if found == nil then steps.odd = true end
  return found or {}
end

local function word(raw)
  return raw and match(raw, '^"([%w_]*)"$') or ""
end

local function given(raw)
  return raw ~= nil and raw ~= "null"
end

local FORMATS = { json_object = true, json_schema = true, structural_tag = true }
local CONSTRAINTS = {
  "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar",
  "output_format",
}

local function forced(shape, choice, steps)
  if not given(choice) then return false end
  if shape == "messages" then
    local kind = word(inner(choice, steps).type)
    return kind == "any" or kind == "tool"
  end
  if byte(choice) == OPEN then return word(inner(choice, steps).mode) ~= "auto" end
  local said = word(choice)
  return said == "required" or said == "REQUIRED"
end

local function structured(shape, call, steps)
  for _, name in ipairs(CONSTRAINTS) do
    if given(call[name]) then return true end
  end
  return FORMATS[word(inner(call.response_format, steps).type)] ~= nil
    or FORMATS[word(inner(inner(call.text, steps).format, steps).type)] ~= nil
    or given(inner(call.output_config, steps).format)
    or forced(shape, call.tool_choice, steps)
    or forced(shape, call.function_call, steps)
end

local BOOLEANS = { ["true"] = true, ["false"] = false, ["null"] = false }

local function read(shape, body)
  -- What a reply must know of the call; nil where that is not plain.
  local steps = { left = STEPS }
  local call = members(body, steps)
  if call == nil then return nil end
  local stream = BOOLEANS[call.stream or "null"]
  local model = match(call.model or '""', '^"([%w%._/:@+-]*)"$')
  local usage = BOOLEANS[inner(call.stream_options, steps).include_usage or "null"]
  local structured = structured(shape, call, steps)
  if stream == nil or usage == nil or model == nil or #model > 256 or steps.odd then return nil end
  return { stream = stream, model = model, usage = usage, structured = structured }
end

-- Words.

local function language_of(accepted)
  local best, weight = LANGUAGE, 0
  for item in accepted:sub(1, 1024):gmatch("[^,]+") do
    local tag, quality = match(item, "^[ \t]*(%a+)"), 1
    local said = match(item, "^[^;]*;[ \t]*[qQ][ \t]*=(.*)$")
    if said then quality = tonumber(said) or 0 end
    tag = tag and tag:lower()
    if MESSAGES[tag] and quality > weight then best, weight = tag, quality end
  end
  return best
end

-- Ids: unique over Envoys and their workers by when and where this script was loaded.
local SALT = ("%08x"):format(tonumber(tostring({}):match("0x(%x+)"), 16) / 8 % 4294967296)
local count = 0

local function new_id(handle)
  count = (count + 1) % 16777216
  local now = tonumber(handle:timestampString(EnvoyTimestampResolution.MICROSECOND)) or 0
  return ("%s%014x%06x"):format(SALT, now, count)
end

-- Answers.

local function reason_for(marks, pool)
  for mark in marks:gmatch("[^,]+") do
    local number, reason = match(mark, "^ *(%d+):([%w_]+)")
    if number == "0" or POOLS.names[tonumber(number)] == pool then return reason end
  end
end

local function filled(reply, slots)
  local parts = {}
  for at, part in ipairs(reply.body) do
    parts[at] = type(part) == "number" and slots[part] or part
  end
  return table.concat(parts)
end

local function reply_for(shape, call, class, reason, tenant)
  local style = ERRORS[class .. " " .. reason .. " " .. tenant] or ERRORS[class .. " " .. reason]
  if style then return TEMPLATES[REPLIES[shape][style]], WORDS[reason] end
  local form = not call.stream and "whole" or call.usage and "usage" or "stream"
  if call.structured then form = "structured " .. form end
  return TEMPLATES[REPLIES[shape][form]], MESSAGES
end

-- A call that keeps its mark is not shown to Tidegate, nor is its answer.
local function pass(handle) handle:headers():remove(MARK) end

function envoy_on_request(handle)
  local headers = handle:headers()
  local marks, class = headers:get(MARK), headers:get(CLASS)
  local shape = PATHS[match(headers:get(":path") or "", "^[^?#]*")]
  local accepted = headers:get("accept-language") or ""
  local left = headers:get(TICKET) or headers:get("content-encoding")
  if marks == nil or class == nil or shape == nil or left then return pass(handle) end
  local metadata = handle:streamInfo():dynamicMetadata()
  local tenant = (metadata:get(NAMESPACE) or {}).tenant or ""

  local buffered = handle:body()
  if buffered == nil then return pass(handle) end
  local call = read(shape, buffered:getBytes(0, buffered:length()))
  if call == nil then return pass(handle) end
  local pool = POOLS.models[call.model] or DEFAULT_POOL
  local reason = pool and reason_for(marks, pool)
  if reason == nil then return pass(handle) end

  local own = TENANTS[tenant] or {}
  local reply, words = reply_for(shape, call, class, reason, tenant)
  local ident = new_id(handle)
  local body = filled(reply, {
    ident, tostring(os.time()), call.model,
    words[own.language or language_of(accepted)], own.finish or FINISH, reason,
  })
  local answer = {
    [":status"] = reply.status,
    ["x-tidegate-verdict"] = "shed",
    ["x-tidegate-reason"] = reason,
    ["x-tidegate-class"] = class,
  }
  for name, value in pairs(reply.headers) do answer[name] = value end
  metadata = handle:streamInfo():dynamicMetadata()
  metadata:set(NAMESPACE, "id", ident)
  metadata:set(NAMESPACE, "reason", reason)
  metadata:set(NAMESPACE, "pool", pool)
  metadata:set(NAMESPACE, "endpoint", shape)
  handle:respond(answer, body)
end
