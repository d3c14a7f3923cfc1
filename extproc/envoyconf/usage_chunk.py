"""The filter that leaves the usage chunk out of streams whose client did not ask for it.

Rules this module keeps:

* Only streams whose verdict says so are looked at; all others cost one look at their metadata.
* It stands first, nearest to the client: the response's headers have left by the time a part of the
  body comes. Changing a part sets a ``content-length``, which would otherwise end the client's body.
* A line is left out whole or not at all, however it is cut into parts: what is not complete waits for
  its rest. What is left at the end is handed on.
* No text of a model looks like that chunk: inside of a JSON string its quotes are escaped.
"""

from __future__ import annotations

from envoy_data_plane.envoy.config.core.v3 import DataSource
from envoy_data_plane.envoy.extensions.filters.http.lua.v3 import Lua

from extproc import contract

_LONGEST_LINE = 1 << 20
"""Bytes; what is longer is no usage chunk, and is not waited for."""
_SCRIPT = f"""\
local function without_usage(lines)
  if not lines:find('"choices":%s*%[%]') then return lines end
  return (lines:gsub("data:[^\\n]*\\n\\n?", function(line)
    if line:find('"choices":%s*%[%]') and line:find('"usage":%s*{{') then return "" end
  end))
end

function envoy_on_response(response)
  local own = response:streamInfo():dynamicMetadata():get("{contract.NAMESPACE}")
  if own == nil or own["{contract.USAGE_CHUNK}"] ~= "{contract.LEFT_OUT}" then return end
  local headers = response:headers()
  local kind = headers:get("content-type") or ""
  if kind:sub(1, 17) ~= "text/event-stream" or headers:get("content-encoding") then return end
  local held = ""
  for part in response:bodyChunks() do
    local length = part:length()
    local came = part:getBytes(0, length)
    local _, complete = came:find("^.*\\n")
    if length == 0 or #held + length > {_LONGEST_LINE} then complete = length end
    if complete == nil then
      held = held .. came
      part:setBytes("")
    else
      local passed = without_usage(held .. came:sub(1, complete))
      held = came:sub(complete + 1)
      if passed ~= came then part:setBytes(passed) end
    end
  end
end
"""


def usage_chunk_filter() -> Lua:
    """Return the filter."""
    return Lua(default_source_code=DataSource(inline_string=_SCRIPT))
