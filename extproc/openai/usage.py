"""The token counts that an engine reports with an answer.

Rules:
- Counts may come once, in every chunk, or half at the beginning and half at the end: of each number
  the last that can be read counts, and nothing that says nothing takes it away.
- What is no count (null, a word, a fraction, less than nothing) is passed over, never an error.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
from msgspec import Raw

from extproc.openai import lax
from extproc.openai.lax import ABSENT, Unreadable


class Usage(NamedTuple):
    """Tokens of one answer, all of its choices together."""

    prompt_tokens: int
    completion_tokens: int


class _Counts(msgspec.Struct, gc=False):
    """Chat and completions have the one pair of names, responses and messages the other."""

    prompt_tokens: Raw = ABSENT
    completion_tokens: Raw = ABSENT
    input_tokens: Raw = ABSENT
    output_tokens: Raw = ABSENT


_decode = msgspec.json.Decoder(_Counts).decode


class UsageReader:
    """Keeps the last counts of one answer."""

    __slots__ = ("_completion", "_prompt")

    def __init__(self) -> None:
        self._prompt: int | None = None
        self._completion: int | None = None

    @property
    def usage(self) -> Usage | None:
        """What was reported, a missing number as 0; ``None`` where nothing was."""
        if self._prompt is self._completion is None:
            return None
        return Usage(self._prompt or 0, self._completion or 0)

    def read(self, raw: Raw) -> None:
        """Take in a ``usage`` member, whatever it holds."""
        try:
            counts = _decode(raw)
        except (msgspec.DecodeError, RecursionError):  # No object; absent is none either.
            return
        prompt = _count(counts.prompt_tokens or counts.input_tokens)
        completion = _count(counts.completion_tokens or counts.output_tokens)
        self._prompt = self._prompt if prompt is None else prompt
        self._completion = self._completion if completion is None else completion


def _count(raw: Raw) -> int | None:
    literal = bytes(raw)
    if literal in (b"true", b"false"):
        return None
    try:
        count = lax.integer(raw, "usage")
    except Unreadable:
        return None
    return count if count is not None and count >= 0 else None
