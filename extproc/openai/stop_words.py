"""Words that end a text, found across the borders of the pieces that it comes in."""

from __future__ import annotations


class StopWords:
    """Looks for the first of several words.

    Attributes:
        pending: so many of the last characters may be the beginning of a word.
    """

    __slots__ = ("_tail", "_width", "_words", "pending")

    def __init__(self, words: tuple[str, ...]) -> None:
        self._words = words
        self._width = max(map(len, words)) - 1
        """Characters of the longest beginning of a word."""
        self._tail = ""
        self.pending = 0

    def feed(self, text: str) -> tuple[int, str] | None:
        """Take in what is new; return where the word that ends first begins, and the word.

        The place is counted from the beginning of ``text``: under 0 for what began before.
        """
        window = self._tail + text
        found = [
            (at + len(word), at, word) for word in self._words if (at := window.find(word)) >= 0
        ]
        if found:
            _, at, word = min(found)
            return at - len(self._tail), word
        self._tail = window[-self._width :] if self._width else ""
        self.pending = max(_beginning(self._tail, word) for word in self._words)
        return None


def _beginning(text: str, word: str) -> int:
    """Return how many of the last characters of ``text`` are the first ones of ``word``."""
    start = text.find(word[0], max(0, len(text) - len(word) + 1))
    while start >= 0:
        if word.startswith(text[start:]):
            return len(text) - start
        start = text.find(word[0], start + 1)
    return 0
