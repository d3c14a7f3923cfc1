"""Streams that are right, but not as vLLM writes them: what other servers and proxies make of them.

Rules this module keeps:

* The events stay the same; a client that reads them as the standard says sees no difference.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection
from enum import StrEnum

_PIECE = 7
"""Bytes: no boundary falls together with one of an event's for long."""


class Oddity(StrEnum):
    """What is unusual about a stream; several go together."""

    NO_SPACE = "no_space"
    """``data:{`` instead of ``data: {``."""
    CRLF = "crlf"
    """Lines end in CR LF."""
    COMMENTS = "comments"
    """A comment goes before each write, as proxies send them to keep connections open."""
    SPLIT = "split"
    """Writes are cut into pieces of seven bytes."""
    GZIP = "gzip"
    """The stream is compressed, and flushed with each write."""
    USAGE_EVERYWHERE = "usage_everywhere"
    """Every chunk of chat and completions tells the usage so far, whether asked for or not."""
    TOOL_CALL = "tool_call"
    """A chat choice says its text as the arguments of a tool call."""


class Wire:
    """Makes of a stream's events the bytes that are written.

    Attributes:
        headers: what the response says of them.
    """

    def __init__(self, oddities: Collection[Oddity]) -> None:
        self._oddities = oddities
        self._deflate = zlib.compressobj(wbits=31) if Oddity.GZIP in oddities else None
        self.headers = {} if self._deflate is None else {"content-encoding": "gzip"}

    def pieces(self, events: bytes) -> list[bytes]:
        """Return what is written for some events, each piece by itself."""
        if Oddity.COMMENTS in self._oddities:
            events = b": still here\n\n" + events
        if Oddity.NO_SPACE in self._oddities:
            events = events.replace(b"data: ", b"data:")
        if Oddity.CRLF in self._oddities:
            events = events.replace(b"\n", b"\r\n")
        if self._deflate is not None:
            events = self._deflate.compress(events) + self._deflate.flush(zlib.Z_SYNC_FLUSH)
        width = _PIECE if Oddity.SPLIT in self._oddities else max(1, len(events))
        return [events[at : at + width] for at in range(0, len(events), width)]

    def end(self) -> bytes:
        """Return what is written last."""
        return b"" if self._deflate is None else self._deflate.flush()
