"""When an answer has said all that its task wants, or says nothing new any more.

Rules:
- Each of an answer's texts is watched by itself, whatever pieces it comes in.
- Positions are counted in characters from the beginning of the text.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum

from extproc.openai.json_end import JsonEnd
from extproc.openai.runaway import Repetition, Whitespace
from extproc.openai.stop_words import StopWords


class Cause(Enum):
    """Why a text is stopped."""

    STOP_WORD = "stop_word"
    COMPLETE_JSON = "complete_json"
    REPETITION = "repetition"
    WHITESPACE = "whitespace"

    @property
    def runaway(self) -> bool:
        """Whether the text is cut as at its longest length, instead of being complete."""
        return self in (Cause.REPETITION, Cause.WHITESPACE)


@dataclass(frozen=True, slots=True)
class Stop:
    """The end of a text.

    Attributes:
        at: where the text ends.
        cause: why.
        word: the stop word that stood there.
        closing: to be added, so that what stands around the text is closed.
    """

    at: int
    cause: Cause
    word: str | None = None
    closing: str = ""


@dataclass(frozen=True, slots=True)
class EarlyStop:
    """What a task's answers are stopped on.

    Attributes:
        complete_json: the first JSON object or array is complete.
        repetition: the text repeats itself and says nothing else any more.
        whitespace: nothing but blanks and line ends come.
        stop: words that end the text, and are no part of it.
    """

    complete_json: bool = False
    repetition: bool = False
    whitespace: bool = False
    stop: tuple[str, ...] = ()

    @classmethod
    def on(cls, causes: Collection[str], stop: tuple[str, ...] = ()) -> EarlyStop:
        """Make the settings from the names that the configuration knows."""
        return cls(
            complete_json=Cause.COMPLETE_JSON.value in causes,
            repetition=Cause.REPETITION.value in causes,
            whitespace=Cause.WHITESPACE.value in causes,
            stop=stop,
        )

    def __bool__(self) -> bool:
        return self.complete_json or self.repetition or self.whitespace or bool(self.stop)


class Watch:
    """Watches one text.

    Attributes:
        length: characters that were seen.
        pending: so many of the last ones may be the beginning of a stop word.
    """

    __slots__ = ("_json", "_repetition", "_whitespace", "_words", "length", "pending")

    def __init__(self, rules: EarlyStop) -> None:
        self.length = 0
        self.pending = 0
        self._words = StopWords(rules.stop) if rules.stop else None
        self._json = JsonEnd() if rules.complete_json else None
        self._repetition = Repetition() if rules.repetition else None
        self._whitespace = Whitespace() if rules.whitespace else None

    def feed(self, text: str) -> Stop | None:
        """Take in what is new; return where the text ends, if it does."""
        before = self.length
        self.length += len(text)
        ends: list[Stop] = []
        if self._words is not None:
            if (found := self._words.feed(text)) is not None:
                ends.append(Stop(before + found[0], Cause.STOP_WORD, word=found[1]))
            self.pending = self._words.pending
        if self._json is not None and (at := self._json.feed(text)) is not None:
            closing = self._json.closing
            ends.append(Stop(before + at, Cause.COMPLETE_JSON, closing=closing))
        if self._repetition is not None and self._repetition.feed(text):
            ends.append(Stop(self.length, Cause.REPETITION))
        if self._whitespace is not None and self._whitespace.feed(text):
            ends.append(Stop(self.length, Cause.WHITESPACE))
        return min(ends, key=_place) if ends else None


def _place(stop: Stop) -> int:
    return stop.at
