"""What a body's ``metadata`` says beside the prompt.

Rules:
- It is the caller's word and nothing depends on its form: whatever is no string counts as absent.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from extproc.openai.calls import Call

LONGEST = 16 * 1024
"""Bytes; longer metadata is not read. OpenAI's own limit is 16 pairs of 64 and 512 characters."""

_decode = msgspec.json.Decoder(dict[str, object]).decode


def metadata(call: Call) -> Mapping[str, str]:
    """Return the strings in the body's ``metadata``; a list of strings is joined by commas."""
    raw = call.members.metadata
    if not raw or len(raw) > LONGEST:
        return {}
    try:
        members = _decode(raw)
    except msgspec.MsgspecError:
        return {}
    return {name: text for name, value in members.items() if (text := _text(value))}


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, list):
        return ",".join(each for each in value if isinstance(each, str))
    return ""
