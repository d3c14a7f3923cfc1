"""What the streams of an endpoint say, and how they are changed and ended.

Rules:
- A dialect sees events in the order in which they come, decoded no further than it needs.
- What it cannot read it passes on, and ends no stream any more: there may have been a tool call in it.
- It writes ends as the engine would, under the ids that the stream has used so far.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw

from extproc.openai.early_stop import Stop
from extproc.openai.lax import ABSENT
from extproc.openai.streams.editor import Asked, Ending
from extproc.openai.usage import Usage, UsageReader

Object = dict[str, Any]


class Delta(NamedTuple):
    """What an event adds to one of the answer's texts.

    Attributes:
        key: which text.
        text: what is new; may be empty.
        ends: the engine says that nothing follows.
    """

    key: int
    text: str
    ends: bool


class _Usage(msgspec.Struct, gc=False):
    usage: Raw = ABSENT


_decode_usage = msgspec.json.Decoder(_Usage).decode


class Dialect(ABC):
    """The events of one stream.

    Attributes:
        begun: the client knows the answer's id, so it can be ended in its name.
        done: the engine has ended the stream by itself.
        sealed: the stream must not be ended by us any more.
        only_usage: the last event read was the extra one that only tells the usage.
        finish: see `extproc.openai.streams.editor.Editor`.
    """

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.begun = False
        self.done = False
        self.sealed = False
        self.only_usage = False
        self.finish: str | None = None
        self._deltas = 0
        self._meter = UsageReader()

    @property
    def usage(self) -> Usage | None:
        """What the engine has reported so far."""
        return self._meter.usage

    @property
    def delivered_tokens(self) -> int:
        """Deltas that were read; the engine's own number where it has told one."""
        reported = self._meter.usage
        return max(self._deltas, reported.completion_tokens) if reported else self._deltas

    @abstractmethod
    def read(self, data: bytes) -> Sequence[Delta]:
        """Take in the data of an event; never raises."""

    @abstractmethod
    def rewritten(self, data: bytes, delta: Delta, text: str | None, stop: Stop) -> bytes:
        """Return the data of an event with another text for one of its deltas.

        Args:
            data: of an event that had the delta.
            delta: as it was read.
            text: instead of the delta's; ``None``: the delta goes, and the event with the last one.
            stop: why; it is told in place of the engine's own reason, if the event has one.
        """

    @abstractmethod
    def framed(self, data: bytes) -> bytes:
        """Return an event with this data."""

    @abstractmethod
    def stop(self, key: int, stop: Stop) -> bytes:
        """Return the end of one text, which was passed on up to ``stop.at``."""

    @property
    @abstractmethod
    def all_ended(self) -> bool:
        """Whether every text has ended, by the engine or by us."""

    @abstractmethod
    def closing(self) -> bytes:
        """Return what follows the ends of all texts."""

    @abstractmethod
    def end(self, ending: Ending) -> bytes:
        """Return the end of a stream whose texts have not all ended."""

    def _unreadable(self, data: bytes) -> tuple[Delta, ...]:
        self.sealed = True
        with suppress(msgspec.DecodeError, RecursionError):
            self._meter.read(_decode_usage(data).usage)
        return ()

    def _counted(self) -> Usage:
        """Return the usage to tell in an end that we write."""
        reported = self._meter.usage
        prompt = reported.prompt_tokens if reported else 0
        return Usage(prompt or self.asked.prompt_tokens, self.delivered_tokens)
