"""Answers that are read, but pass as they are: JSON bodies, encoded ones, and what we do not know.

Rules, beside those of `editor`:
- Of a JSON body a copy is kept for reading, up to ``LONGEST_READ`` bytes; of a longer one the usage
  stays unknown.
- An encoded stream is decoded for reading only: we could not write into the middle of it. Where it
  does not decode, or would grow beyond ``LONGEST_INFLATED`` bytes in one piece, reading ends.
"""

from __future__ import annotations

import zlib
from contextlib import suppress
from typing import Final

import msgspec
from msgspec import Raw

from extproc.openai.lax import ABSENT
from extproc.openai.streams.editor import Edit, Editor, Ending
from extproc.openai.usage import Usage, UsageReader

LONGEST_READ: Final = 4 << 20
LONGEST_INFLATED: Final = 1 << 20
_INFLATED = frozenset(("gzip", "x-gzip", "deflate"))


class _Choice(msgspec.Struct, gc=False):
    finish_reason: str | None = None


class _Body(msgspec.Struct, gc=False):
    usage: Raw = ABSENT
    choices: tuple[_Choice, ...] = ()
    error: Raw = ABSENT
    status: str | None = None
    stop_reason: str | None = None


class _Usage(msgspec.Struct, gc=False):
    usage: Raw = ABSENT


_decode = msgspec.json.Decoder(_Body).decode
_decode_usage = msgspec.json.Decoder(_Usage).decode


class JsonReader(Editor):
    """Reads a whole JSON body, which can only be replaced before its first byte."""

    def __init__(self) -> None:
        self._body = bytearray()
        self._begun = False
        self._finished = False
        self._meter = UsageReader()
        self._finish: str | None = None

    def feed(self, chunk: bytes, *, end: bool = False) -> Edit:
        """See `Editor`."""
        if self._finished:
            return Edit(b"", finished=True)
        if chunk:
            self._begun = True
            if len(self._body) <= LONGEST_READ:
                self._body += chunk
        if end:
            self._read()
        return Edit(chunk)

    def cut(self, ending: Ending) -> Edit | None:
        """See `Editor`."""
        if not self._finished:
            if self._begun or not ending.fallback:
                return None
            self._finished = True
            return Edit(ending.fallback, finished=True)
        return Edit(b"", finished=True)

    @property
    def cuttable(self) -> bool:
        """See `Editor`."""
        return not self._begun and not self._finished

    @property
    def usage(self) -> Usage | None:
        """See `Editor`."""
        return self._meter.usage

    @property
    def delivered_tokens(self) -> int:
        """See `Editor`; 0 where the engine has told none."""
        usage = self._meter.usage
        return usage.completion_tokens if usage else 0

    @property
    def finish(self) -> str | None:
        """See `Editor`."""
        return self._finish

    def _read(self) -> None:
        body, self._body = self._body, bytearray()
        if len(body) > LONGEST_READ:
            return
        try:
            answer = _decode(body)
        except (msgspec.DecodeError, RecursionError):
            with suppress(msgspec.DecodeError, RecursionError):
                self._meter.read(_decode_usage(body).usage)
            return
        self._meter.read(answer.usage)
        if answer.error:
            self._finish = "error"
        elif answer.choices:
            self._finish = answer.choices[0].finish_reason
        else:
            self._finish = answer.stop_reason or answer.status


def _inflater() -> zlib._Decompress:
    return zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)


class EncodedReader(Editor):
    """Lets another editor read what it passes on."""

    def __init__(self, reader: Editor, encoding: str) -> None:
        self._reader = reader
        self._inflate = _inflater() if encoding in _INFLATED else None

    def feed(self, chunk: bytes, *, end: bool = False) -> Edit:
        """See `Editor`."""
        self._reader.feed(self._inflated(chunk), end=end)
        return Edit(chunk)

    def _inflated(self, chunk: bytes) -> bytes:
        plain = b""
        while self._inflate is not None and chunk:
            room = max(1, LONGEST_INFLATED - len(plain))
            try:
                plain += self._inflate.decompress(chunk, room)
            except zlib.error:
                self._inflate = None
                break
            if self._inflate.unconsumed_tail:
                self._inflate = None
                break
            chunk = self._inflate.unused_data
            if self._inflate.eof:  # Another one may follow: some servers encode each piece alone.
                self._inflate = _inflater()
        return plain

    def cut(self, ending: Ending) -> Edit | None:
        """See `Editor`."""
        return None

    @property
    def cuttable(self) -> bool:
        """See `Editor`."""
        return False

    @property
    def usage(self) -> Usage | None:
        """See `Editor`."""
        return self._reader.usage

    @property
    def delivered_tokens(self) -> int:
        """See `Editor`."""
        return self._reader.delivered_tokens

    @property
    def finish(self) -> str | None:
        """See `Editor`."""
        return self._reader.finish
