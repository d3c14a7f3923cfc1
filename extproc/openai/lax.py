"""JSON members read as the engine reads them: ``json.loads``, then pydantic's lax mode.

Rules:
- Lax mode takes ``"5"``, ``5.0`` and ``true`` for integers and ``"yes"`` for true. Whatever it
  refuses, and whatever we are not sure of, raises ``Unreadable``; nothing is guessed.
- An absent member is an empty ``Raw``, so false.
- Error texts name the member and never quote its value.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import TypeVar

from msgspec import Raw

ABSENT = Raw(b"")

_HEADROOM = 32
"""Calls; more than lie between two readings or writings of the same JSON."""
_Given = TypeVar("_Given")
_Read = TypeVar("_Read")

_INTEGER = re.compile(r"([+-]?\d+(?:_\d+)*)(?:\.0+)?", re.ASCII)
_PLAIN_DIGITS = 18
_LONGEST_INTEGER = 64
"""Characters, with sign and underscores."""
_LARGEST = 2**63 - 1
"""No length or count means more, and arithmetic with much more than that fails."""
_PLAIN_TEXT = 256
_LONGEST = 64 * 1024
"""Bytes; no member that is decoded here needs more."""
_BOOLEANS = {b"null": False, b"false": False, b"true": True}
_TRUE = frozenset(("1", "on", "t", "true", "y", "yes"))
_FALSE = frozenset(("0", "off", "f", "false", "n", "no"))


class Unreadable(ValueError):  # noqa: N818 - says what the body is
    """The body cannot be read, or the engine could read it in a way that we cannot foresee.

    ``message`` says what is wrong (never a value out of the body), ``param`` names the member,
    ``None`` where the body as a whole is no JSON object.
    """

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


def with_headroom(
    decode: Callable[[_Given], _Read], given: _Given, calls: int = _HEADROOM
) -> _Read:
    """Decode with this many calls less on the stack than there are; raise ``RecursionError``.

    What can be read so can be read and written again a few calls deeper, however nested it is.
    """
    return with_headroom(decode, given, calls - 1) if calls else decode(given)


def value(raw: Raw, name: str) -> object:
    """Return a member's value, ``None`` for null and absent; raise ``Unreadable``."""
    if not raw:
        return None
    if len(raw) > _LONGEST:
        raise Unreadable(f"{name} is too long.", name)
    try:
        found: object = json.loads(bytes(raw))
    except (ValueError, RecursionError):
        raise Unreadable(f"{name} cannot be read.", name) from None
    return found


def integer(raw: Raw, name: str) -> int | None:
    """Return the integer that the engine sees, within 64 bits; ``None`` for null and absent."""
    if not raw:
        return None
    literal = bytes(raw)
    if len(literal) <= _PLAIN_DIGITS and literal.isdigit():
        return int(literal)
    found = value(raw, name)
    if found is None:
        return None
    if isinstance(found, str) and (match := _INTEGER.fullmatch(found.strip())):
        number = int(match[1]) if len(match[1]) <= _LONGEST_INTEGER else math.inf
    elif isinstance(found, int) or (isinstance(found, float) and found.is_integer()):
        number = int(found)
    else:
        raise Unreadable(f"{name} must be an integer.", name)
    if abs(number) > _LARGEST:
        raise Unreadable(f"{name} is out of range.", name)
    return int(number)


def boolean(raw: Raw, name: str) -> bool:
    """Return the boolean that the engine sees, false for null and absent."""
    if not raw:
        return False
    literal = _BOOLEANS.get(bytes(raw))
    if literal is not None:
        return literal
    found = value(raw, name)
    if isinstance(found, str) and (word := found.lower()) in _TRUE | _FALSE:
        return word in _TRUE
    if isinstance(found, int | float) and found in (0, 1):
        return bool(found)
    raise Unreadable(f"{name} must be a boolean.", name)


def text(raw: Raw, name: str) -> str:
    """Return a string, empty for null and absent; lone surrogates are no text."""
    if len(raw) <= _PLAIN_TEXT:
        literal = bytes(raw)
        if literal.startswith(b'"') and b"\\" not in literal and literal.isascii():
            return literal[1:-1].decode()
    found = value(raw, name)
    if found is None:
        return ""
    if isinstance(found, str):
        try:
            found.encode()
        except UnicodeEncodeError:
            pass
        else:
            return found
    raise Unreadable(f"{name} must be a string.", name)


def hint(raw: Raw) -> str:
    """Return a string that nothing depends on: whatever else is there counts as absent."""
    if not raw:
        return ""
    try:
        return text(raw, "")
    except Unreadable:
        return ""
