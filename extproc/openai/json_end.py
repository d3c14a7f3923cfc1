"""Where the first JSON value of a text ends: its closing bracket, found while the text comes in.

Rules:
- A value is an object or an array whose opening bracket stands first on its line: a bracket in the
  middle of a sentence, such as a reference ``[1]``, is none. What is thought aloud between
  ``<think>`` tags is passed over.
- The first character inside must be one that can stand there; a bracket that closes another kind
  shows that it was no JSON. Then the search goes on behind it. Where in doubt, the text goes on.
- Memory and time for a character do not depend on the length of the text: what is kept is a state
  and the open brackets, at most ``DEEPEST``; a text that opens more has no end.
"""

from __future__ import annotations

import re
from typing import Final

DEEPEST: Final = 1000

_CLOSES = {"{": "}", "[": "]"}
# Without the words true, false and null: an array that starts with one is rarer than ``[note]``.
_FIRST = {"}": frozenset('"}'), "]": frozenset('"{[]-0123456789')}
_BLANKS = " \t\r\n"
_STRUCTURE = re.compile(r'[{}\[\]"]')
_STRING_END = re.compile(r'["\\]')
_FENCE = "```"
_THINK, _THOUGHT = "<think>", "</think>"
_SENTENCE = "…"
"""Stands for a line that has begun with something else."""


class JsonEnd:
    """Reads a text up to the end of its first JSON value."""

    __slots__ = ("_escaped", "_fenced", "_fresh", "_line", "_lost", "_open", "_string", "_thinking")

    def __init__(self) -> None:
        self._line = ""
        """How the current line begins, or of a thought how the text so far ends."""
        self._thinking = False
        self._fenced = False
        self._open: list[str] = []
        """The brackets that will close the open ones, the innermost last."""
        self._fresh = False
        """Nothing was seen yet inside of the outermost bracket."""
        self._string = False
        self._escaped = False
        self._lost = False
        """More brackets were open than are counted."""

    @property
    def closing(self) -> str:
        """What has to follow the value, so that the code block around it is closed."""
        return "\n" + _FENCE if self._fenced else ""

    def feed(self, text: str) -> int | None:
        """Take in what is new; return the place right behind the value, once it is complete.

        After that it must not be called any more.
        """
        at = len(text) if self._lost else 0
        while at < len(text):
            if self._thinking:
                at = self._think(text, at)
            elif not self._open:
                at = self._seek(text, at)
            elif self._fresh:
                at = self._first(text, at)
            elif self._string:
                at = self._read_string(text, at)
            else:
                at = self._read_structure(text, at)
                if not self._open and not self._line:
                    return at
        return None

    def _think(self, text: str, at: int) -> int:
        window = self._line + text[at:]
        found = window.find(_THOUGHT)
        if found < 0:
            self._line = window[1 - len(_THOUGHT) :]
            return len(text)
        at += found + len(_THOUGHT) - len(self._line)
        self._line, self._thinking = "", False
        return at

    def _seek(self, text: str, at: int) -> int:
        """Go on to the next bracket that may open a value, at most to the next line."""
        if not self._line:
            while at < len(text) and text[at] in _BLANKS:
                at += 1
            if at == len(text):
                return at
            closes = _CLOSES.get(text[at])
            if closes:
                self._open.append(closes)
                self._fresh = True
                return at + 1
        line_end = text.find("\n", at)
        until = len(text) if line_end < 0 else line_end
        self._line = (self._line + text[at : at + len(_THINK)])[: len(_THINK)]
        if self._line == _THINK:
            self._line, self._thinking = "", True
            return at
        if line_end < 0:
            return until
        if self._line.startswith(_FENCE):
            self._fenced = not self._fenced
        self._line = ""
        return until + 1

    def _first(self, text: str, at: int) -> int:
        """Look at what comes first inside of the outermost bracket."""
        while at < len(text) and text[at] in _BLANKS:
            at += 1
        if at < len(text):
            self._fresh = False
            if text[at] not in _FIRST[self._open[0]]:
                self._no_json()
        return at

    def _read_structure(self, text: str, at: int) -> int:
        """Go on to the next string, or to the end of the value."""
        while (found := _STRUCTURE.search(text, at)) is not None:
            at, mark = found.end(), found[0]
            if mark == '"':
                self._string = True
                return at
            if mark in _CLOSES:
                self._open.append(_CLOSES[mark])
                if len(self._open) > DEEPEST:
                    self._lost = True
                    return len(text)
            elif mark != self._open.pop():
                self._no_json()
                return at
            elif not self._open:
                return at
        return len(text)

    def _read_string(self, text: str, at: int) -> int:
        if self._escaped:
            self._escaped = False
            return at + 1
        found = _STRING_END.search(text, at)
        if found is None:
            return len(text)
        if found[0] == '"':
            self._string = False
        else:
            self._escaped = True
        return found.end()

    def _no_json(self) -> None:
        self._open.clear()
        self._line = _SENTENCE
