"""The body that goes to the engine instead of the client's.

Rules:
- Where nothing has to change nothing is written: the client's bytes go on. Where something has to,
  all other members keep their bytes.
- The clamp is for each choice; ``Call.choices`` says how many there are. Every member that bounds
  the output is clamped, also the one that the engine would not look at today.
- A limit that is left open is set. A limit that the engine will refuse stays.
- Clients have no say in ``priority``: theirs is replaced or taken out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import Raw

from extproc.openai import lax
from extproc.openai.calls import LIMITS, Call, Members
from extproc.openai.endpoints import Endpoint
from extproc.openai.lax import Unreadable

MOST_STOPS: Final = 4
"""Stop sequences of a call; vLLM refuses more, unless VLLM_MAX_STOP_STRINGS says otherwise."""

_REMOVED: Final = object()
_LEAST_THINKING = 1024
"""Tokens; the engine refuses a smaller thinking budget."""
_CROWDED = 256 * 1024
"""Bytes of small or unknown members, above which taking the object apart takes too long."""
_BULK = ("messages", "prompt", "prompt_embeds", "input", "system", "instructions", "documents")
_REPORTS_USAGE = (Endpoint.CHAT, Endpoint.COMPLETIONS, Endpoint.GENERATE)
_BLANK = b" \t\r\n"

_decode_object = msgspec.json.Decoder(dict[str, Raw]).decode


def rewrite(
    call: Call,
    *,
    max_output: int | None,
    priority: int | None = None,
    stop: tuple[str, ...] = (),
    include_usage: bool = False,
) -> bytes | None:
    """Return the body for the engine, ``None`` if the client's own bytes will do.

    ``max_output``: the most tokens for each choice, at least 1; ``None``: no limit. ``priority``:
    for engines that schedule by it, ``None`` for the others. ``stop``: sequences that end the
    output, beside the client's. ``include_usage``: a stream has to report its usage.
    """
    changes = _stopped(call, stop) if stop else {}
    if max_output is not None:
        changes |= _clamped(call, max_output)
    if call.endpoint is Endpoint.GENERATE and changes:
        inner = _changed(bytes(call.members.sampling_params), call.limited, changes, call.lenient)
        changes = {"sampling_params": Raw(inner)}
    if priority is not None and call.endpoint is not Endpoint.MESSAGES:
        if bytes(call.members.priority) != b"%d" % priority:
            changes["priority"] = priority
    elif call.members.priority:
        changes["priority"] = _REMOVED
    if include_usage and tells_usage_unasked(call):
        changes |= _reporting(call.members.stream_options)
    return _changed(call.body, call.members, changes, call.lenient) if changes else None


def tells_usage_unasked(call: Call) -> bool:
    """Return whether the call streams and would tell its usage only if asked, which it is not."""
    return call.stream and not call.include_usage and call.endpoint in _REPORTS_USAGE


def _reporting(stream_options: Raw) -> dict[str, object]:
    """Ask for the usage, in a chunk of its own only: that one can be left out of the answer."""
    try:
        given = lax.value(stream_options, "stream_options") or {}
    except Unreadable:
        return {}
    if not isinstance(given, dict):
        return {}  # The engine will refuse it.
    given.pop("continuous_usage_stats", None)
    return {"stream_options": {**given, "include_usage": True}}


def _clamped(call: Call, most: int) -> dict[str, object]:
    limits = LIMITS[call.endpoint]
    changes: dict[str, object] = {
        name: most for name, length in call.lengths.items() if length > most
    }
    if (
        limits.names
        and call.max_output is None
        and (limits.default is None or limits.default > most)
    ):
        changes[limits.names[-1]] = most
    if call.endpoint is Endpoint.MESSAGES and changes:
        changes |= _thinking_below(most, call.limited.thinking)
    return changes


def _thinking_below(most: int, raw: Raw) -> dict[str, object]:
    """Shorten the thinking, which the engine wants shorter than the limit that we lowered."""
    try:
        thinking = lax.value(raw, "thinking")
        if not isinstance(thinking, dict):
            return {}
        budget = lax.integer(_raw(thinking.get("budget_tokens")), "thinking")
    except Unreadable:
        return {}  # The engine will refuse it.
    if budget is None or budget < most:
        return {}
    if most <= _LEAST_THINKING:
        return {"thinking": {"type": "disabled"}}
    return {"thinking": thinking | {"budget_tokens": max(_LEAST_THINKING, most // 2)}}


def surplus_stop(call: Call, stop: tuple[str, ...]) -> tuple[str, ...]:
    """Return the sequences that `rewrite` does not tell the engine, because it takes no more.

    The answer has to be watched for them. Those of the client all count.
    """
    given = _given_stops(call)
    return () if given is None else _missing(given, stop)[_room(given) :]


def _stopped(call: Call, stop: tuple[str, ...]) -> dict[str, object]:
    name, given = LIMITS[call.endpoint].stop, _given_stops(call)
    if name is None or given is None:
        return {}
    added = _missing(given, stop)[: _room(given)]
    return {name: [*given, *added]} if added else {}


def _given_stops(call: Call) -> list[object] | None:
    """Return the client's stop sequences, ``None`` where there can be none."""
    name = LIMITS[call.endpoint].stop
    if name is None:
        return None
    try:
        given = lax.value(getattr(call.limited, name), name)
    except Unreadable:
        return None  # The engine will refuse it.
    if given is None:
        return []
    if isinstance(given, list):
        return given
    return [given] if isinstance(given, str) else None


def _missing(given: list[object], stop: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(text for text in dict.fromkeys(stop) if text not in given)


def _room(given: list[object]) -> int:
    return max(0, MOST_STOPS - len(given))


def _changed(body: bytes, members: Members, changes: Mapping[str, object], lenient: bool) -> bytes:
    """Return the object ``body`` with ``changes``; all other members keep their bytes."""
    if lenient:
        return _changed_leniently(body, changes)
    if not any(getattr(members, name) for name in changes) or _crowded(body, members):
        return _appended(body, changes)
    try:
        tree = _decode_object(body)
    except msgspec.DecodeError:  # A name is not UTF-8: the engine will refuse it.
        return _appended(body, changes)
    for name, value in changes.items():
        if value is _REMOVED:
            del tree[name]
        else:
            tree[name] = _raw(value)
    return msgspec.json.encode(tree)


def _changed_leniently(body: bytes, changes: Mapping[str, object]) -> bytes:
    tree = json.loads(body)
    for name, value in changes.items():
        tree[name] = json.loads(bytes(value)) if isinstance(value, Raw) else value
    return json.dumps({k: v for k, v in tree.items() if v is not _REMOVED}).encode()


def _appended(body: bytes, changes: Mapping[str, object]) -> bytes:
    """Append the changes. Should a name be there already, the engine takes the last one.

    Nothing can be taken out this way: a priority becomes 0, which is the engine's default.
    """
    head = body.rstrip(_BLANK)[:-1].rstrip(_BLANK)
    added = b",".join(
        b'"%s":%s' % (name.encode(), bytes(_raw(0 if value is _REMOVED else value)))
        for name, value in changes.items()
    )
    return b"%s%s%s}" % (head, b"" if head.endswith(b"{") else b",", added)


def _crowded(body: bytes, members: Members) -> bool:
    if len(body) <= _CROWDED:
        return False
    return len(body) - sum(len(getattr(members, name)) for name in _BULK) > _CROWDED


def _raw(value: object) -> Raw:
    if isinstance(value, Raw):
        return value
    if type(value) is int:  # What most changes are.
        return Raw(b"%d" % value)
    return Raw(json.dumps(value, separators=(",", ":")).encode())
