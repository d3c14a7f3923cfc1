"""Server-sent events: a stream of bytes taken apart at its blank lines, and events written.

Rules:
- Nothing is lost and nothing is made up: what comes out, in order, is what went in, however it was
  cut into chunks (inside of UTF-8, of ``data:``, between CR and LF).
- Lines end in LF, CRLF or CR, an event at a blank line. Comments, ``data:`` without a space and
  several data lines are read as browsers read them.
- What is kept is bounded: an event longer than ``LONGEST_EVENT`` is handed on in pieces, unread.
- Whatever a text contains, an event that we write is valid JSON, and no line of it breaks early:
  clients that split lines as ``str.splitlines`` does would also break at U+0085, U+2028 and U+2029.
"""

from __future__ import annotations

import json
import re
from typing import Final

import msgspec

SSE: Final = "text/event-stream"
DONE: Final = b"data: [DONE]\n\n"
LONGEST_EVENT: Final = 1 << 20
"""Bytes; the longest of ordinary events repeat the whole text at its end."""

_BLANK_LINE = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)")
_OVERLAP = 3
"""Bytes; a blank line that is not yet complete has at most as many: CR LF CR."""
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Event(msgspec.Struct, frozen=True, gc=False):
    """A piece of the stream.

    Attributes:
        raw: its bytes, with the blank line that ends it.
        data: what it says, undecoded; empty where it says nothing, or is not to be read.
    """

    raw: bytes
    data: bytes


class EventReader:
    """Takes a stream apart.

    Attributes:
        unread: an event was too long, and handed out in pieces.
    """

    __slots__ = ("_rest", "_searched", "_torn", "unread")

    def __init__(self) -> None:
        self.unread = False
        self._torn = False
        self._rest = bytearray()
        self._searched = 0

    @property
    def rest(self) -> bytes:
        """The event that is not complete yet."""
        return bytes(self._rest) if self._rest else b""

    def feed(self, chunk: bytes) -> list[Event]:
        """Take the next bytes and return the events that they complete."""
        rest = self._rest
        if rest:
            rest += chunk
            source: bytes | bytearray = rest
        else:
            source = chunk
        events: list[Event] = []
        start = 0
        end = _end_of_event(source, self._searched)
        while end:
            events.append(self._event(bytes(source[start:end])))
            start = end
            end = _end_of_event(source, start)
        if source is rest:
            del rest[:start]
        elif start < len(chunk):
            rest += chunk[start:]
        if len(rest) > LONGEST_EVENT:
            events.append(Event(bytes(rest[:-_OVERLAP]), b""))
            del rest[:-_OVERLAP]
            self.unread = self._torn = True
        self._searched = max(0, len(rest) - _OVERLAP)
        return events

    def end(self) -> list[Event]:
        """Return what is left when the stream has ended; some clients read it as an event."""
        left, self._rest, self._searched = bytes(self._rest), bytearray(), 0
        return [self._event(left)] if left else []

    def _event(self, raw: bytes) -> Event:
        if self._torn:
            self._torn = False
            return Event(raw, b"")
        return Event(raw, _data(raw))


def _end_of_event(source: bytes | bytearray, start: int) -> int:
    """Return where the first blank line at or after ``start`` ends, else 0."""
    if b"\r" not in source:  # Almost every stream: three times as fast.
        found = source.find(b"\n\n", start)
        return found + 2 if found >= 0 else 0
    blank = _BLANK_LINE.search(source, start)
    return blank.end() if blank else 0


def _data(raw: bytes) -> bytes:
    lines = raw.removeprefix(_BYTE_ORDER_MARK).splitlines()
    return b"\n".join([line[5:].removeprefix(b" ") for line in lines if line[:5] == b"data:"])


_encode = msgspec.json.Encoder().encode


def dump(value: object) -> bytes:
    """Return JSON that fits in one line, however lines are split; lone surrogates become ``?``."""
    try:
        text = _encode(value)
    except UnicodeEncodeError:  # No UTF-8 can carry it.
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")
    if text.isascii():
        return text
    return (
        text.replace(b"\xc2\x85", b"\\u0085")
        .replace(b"\xe2\x80\xa8", b"\\u2028")
        .replace(b"\xe2\x80\xa9", b"\\u2029")
    )


def chunk(value: object) -> bytes:
    """Return an event without a name, as chat and completions send them."""
    return b"data: %s\n\n" % dump(value)


def named(kind: str, value: dict[str, object]) -> bytes:
    """Return an event whose name is its ``type`` as well, as responses and messages send them."""
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), dump({"type": kind, **value}))
