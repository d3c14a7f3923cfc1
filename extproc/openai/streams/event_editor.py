"""Edits a stream of events.

Rules, beside those of `editor`:
- An event is passed on as soon as it is complete, in the order in which it came. One that may hold
  the beginning of a stop word waits until that is decided, and all behind it, up to ``MOST_HELD``.
- Each text is stopped by itself. The stream ends with the last one, if it was we who stopped that.
- The chunk that only tells the usage is left out where the client did not ask for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from extproc.openai.early_stop import EarlyStop, Stop, Watch
from extproc.openai.sse import Event, EventReader
from extproc.openai.streams.dialect import Delta, Dialect
from extproc.openai.streams.editor import Edit, Editor, Ending
from extproc.openai.usage import Usage

MOST_HELD: Final = 64
"""Events; then the one text waits for long, and others should not."""


class _Held(msgspec.Struct):
    """An event that is not yet passed on.

    Attributes:
        raw: its bytes.
        data: its data; empty once it is written by us.
        deltas: what it adds, each with the place where that begins in its text.
    """

    raw: bytes
    data: bytes = b""
    deltas: list[tuple[Delta, int]] = msgspec.field(default_factory=list)


class EventEditor(Editor):
    """Edits the stream of one endpoint's dialect."""

    def __init__(self, dialect: Dialect, early_stop: EarlyStop, *, strip_usage: bool) -> None:
        self._dialect = dialect
        self._early_stop = early_stop
        self._strip_usage = strip_usage
        self._reader = EventReader()
        self._watches: dict[int, Watch] = {}
        self._pending: set[int] = set()
        """The texts that may end in the beginning of a stop word."""
        self._stops: dict[int, Stop] = {}
        """The texts that were stopped by us."""
        self._held: list[_Held] = []
        self._finished = False
        self._unsent = b""

    def feed(self, chunk: bytes, *, end: bool = False) -> Edit:
        """See `Editor`."""
        if self._finished:
            return Edit(b"", finished=True)
        events = self._reader.feed(chunk)
        if end:
            events += self._reader.end()
        if self._reader.unread:
            self._dialect.sealed = True
        passed = self._take_all(events)
        if end:
            passed += self._release()
        rest = self._reader.rest
        self._unsent = b"".join([held.raw for held in self._held]) + rest if self._held else rest
        return Edit(passed, finished=self._finished)

    def cut(self, ending: Ending) -> Edit | None:
        """See `Editor`."""
        if not (self._finished or self._dialect.done):
            if not self.cuttable:
                return None
            if not self._dialect.begun:
                return self._finish(ending.fallback) if ending.fallback else None
            self._held.append(_Held(self._dialect.end(ending)))
        return self._finish(self._release())

    @property
    def unsent(self) -> bytes:
        """See `Editor`."""
        return self._unsent

    @property
    def cuttable(self) -> bool:
        """See `Editor`."""
        dialect = self._dialect
        if self._finished or dialect.done or dialect.sealed:
            return False
        return not dialect.begun or not dialect.asked.structured

    @property
    def usage(self) -> Usage | None:
        """See `Editor`."""
        return self._dialect.usage

    @property
    def delivered_tokens(self) -> int:
        """See `Editor`."""
        return self._dialect.delivered_tokens

    @property
    def finish(self) -> str | None:
        """See `Editor`."""
        return self._dialect.finish

    def _finish(self, data: bytes) -> Edit:
        self._finished = True
        return Edit(data, finished=True)

    def _take_all(self, events: Sequence[Event]) -> bytes:
        passed: list[bytes] = []
        for event in events:
            passed.append(self._take(event))
            if self._finished:
                break
        return passed[0] if len(passed) == 1 else b"".join(passed)

    def _take(self, event: Event) -> bytes:
        """Take an event and return what can be passed on now."""
        dialect = self._dialect
        if not event.data:
            return self._pass(event.raw)
        deltas = dialect.read(event.data)
        if dialect.only_usage and self._strip_usage:
            return b""
        if not self._early_stop or (dialect.sealed and not self._stops):
            return self._pass(event.raw)
        return self._watch(event, deltas)

    def _pass(self, raw: bytes) -> bytes:
        if not self._held:
            return raw
        self._held.append(_Held(raw))
        return self._decided()

    def _decided(self) -> bytes:
        """Return what need not wait any more."""
        waits = self._pending and not self._finished and len(self._held) <= MOST_HELD
        if waits and not self._dialect.sealed and not self._dialect.done:
            return b""
        return self._release()

    def _release(self) -> bytes:
        released = b"".join([held.raw for held in self._held])
        self._held.clear()
        return released

    # Early stop.

    def _watch(self, event: Event, deltas: Sequence[Delta]) -> bytes:
        sealed = self._dialect.sealed
        held = _Held(event.raw, event.data)
        self._held.append(held)
        for delta in deltas:
            stop = self._stops.get(delta.key)
            if stop is not None:  # The client has its end already.
                self._rewrite(held, delta, None, stop)
            elif not sealed:
                self._look(held, delta)
        return self._decided()

    def _look(self, held: _Held, delta: Delta) -> None:
        key = delta.key
        watch = self._watches.get(key)
        if watch is None:
            watch = self._watches[key] = Watch(self._early_stop)
        held.deltas.append((delta, watch.length))
        stop = watch.feed(delta.text) if delta.text else None
        if stop is not None and not (delta.ends and stop.at == watch.length):
            self._pending.discard(key)
            self._stop(key, stop, by_engine=delta.ends)
        elif watch.pending and not delta.ends:
            self._pending.add(key)
        else:
            self._pending.discard(key)

    def _stop(self, key: int, stop: Stop, *, by_engine: bool) -> None:
        self._stops[key] = stop
        for held in self._held:
            for delta, start in held.deltas:
                if delta.key != key:
                    continue
                text = delta.text[: max(0, stop.at - start)]
                if start < stop.at <= start + len(delta.text):
                    text += stop.closing
                if text != delta.text:
                    self._rewrite(held, delta, text if text or delta.ends else None, stop)
        if by_engine:
            return
        self._held.append(_Held(self._dialect.stop(key, stop)))
        if self._dialect.all_ended:
            self._held.append(_Held(self._dialect.closing()))
            self._finished = True

    def _rewrite(self, held: _Held, delta: Delta, text: str | None, stop: Stop) -> None:
        try:
            held.data = self._dialect.rewritten(held.data, delta, text, stop)
        except (msgspec.DecodeError, RecursionError):  # In a member that nobody had looked at.
            held.data = b""
        held.raw = self._dialect.framed(held.data) if held.data else b""
