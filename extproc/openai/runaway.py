"""Text that says nothing new any more: one passage over and over, or blanks without end.

Rules:
- A passage repeats itself where every byte is the same as the one that stood ``period`` bytes before.
  Tables, lists, code and logs are alike from line to line, but not the same: one different byte in
  ``LEAST_REPEATED`` shows that the text goes on. So nothing is guessed about what a text is like.
- What is exactly periodic and meant (a separator line, empty rows of a form, a refrain) ends. Only
  ``LEAST_REPEATED`` bytes that repeat, at least ``LEAST_TIMES`` over, are a runaway.
- Bytes of UTF-8 are counted, because a token is about as many of them in every script.
- A byte costs the same however long the text is: only its last ``LONGEST_PERIOD`` bytes are kept.
"""

from __future__ import annotations

from typing import Final

LEAST_REPEATED: Final = 2000
"""Bytes, some 500 tokens: as long as an answer is that many people would still read."""
LEAST_TIMES: Final = 5
LONGEST_PERIOD: Final = 1024
"""Bytes; a longer passage that is repeated is not noticed."""
LONGEST_BLANK: Final = 512
"""Blanks and line ends in a row; wide tables and deep indentation have fewer."""

_PROBE = 32
"""Bytes at the end that are looked for in what was before, once in as many new ones."""


class Repetition:
    """Notices that a text repeats itself."""

    __slots__ = ("_new", "_period", "_repeated", "_seen")

    def __init__(self) -> None:
        self._seen = b""
        self._new = 0
        """Bytes since the last look for a period."""
        self._period = 0
        self._repeated = 0
        """Bytes at the end that are as those a period before."""

    def feed(self, text: str) -> bool:
        """Take in what is new; return whether the text is a runaway."""
        new = text.encode(errors="surrogatepass")
        seen = self._seen + new
        if self._period:
            start = len(self._seen) - self._period
            if seen.startswith(new, start):
                self._repeated += len(new)
            else:
                self._period = self._repeated = 0
        self._new += len(new)
        if not self._period and self._new >= _PROBE:
            self._new = 0
            self._look(seen)
        self._seen = seen[-LONGEST_PERIOD - _PROBE :]
        return self._repeated >= max(LEAST_REPEATED, LEAST_TIMES * self._period)

    def _look(self, seen: bytes) -> None:
        farthest = max(0, len(seen) - LONGEST_PERIOD - _PROBE)
        before = seen.rfind(seen[-_PROBE:], farthest, len(seen) - 1)
        if before >= 0:
            self._period = len(seen) - _PROBE - before
            self._repeated = _PROBE


class Whitespace:
    """Notices that only whitespace comes."""

    __slots__ = ("_run",)

    def __init__(self) -> None:
        self._run = 0

    def feed(self, text: str) -> bool:
        """Take in what is new; return whether the text is a runaway."""
        words = len(text.rstrip())
        self._run = len(text) - words if words else self._run + len(text)
        return self._run >= LONGEST_BLANK
