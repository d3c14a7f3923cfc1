"""Runs the engine model in real time and hands each call the tokens that it gets.

Rules this module keeps:

* The engine is stepped by one task only; between steps that task sleeps for as long as the step
  takes, and only then hands out the step's tokens.
* A call is a ``with`` block: leaving it, by return, error or cancellation, aborts in the engine
  whatever of it is unfinished.
* A reader that is slow finds several tokens at once; nothing is buffered but their number.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from extproc.sim.engine import Engine, Request, StepResult

CATCH_UP = 0.1
"""Seconds that a late loop may catch up by stepping without sleep."""


class Generation:
    """The sequences of one call as they grow.

    Attributes:
        tokens: tokens generated so far, for each sequence.
        ended: whether it has got its last token, for each sequence.
    """

    def __init__(self, sequences: int) -> None:
        self.tokens = [0] * sequences
        self.ended = [False] * sequences
        self._unfinished = sequences
        self._news = asyncio.Event()

    @property
    def finished(self) -> bool:
        """Whether every sequence has got its last token."""
        return self._unfinished == 0

    async def progress(self) -> None:
        """Wait until there is something new."""
        await self._news.wait()
        self._news.clear()

    async def end(self) -> None:
        """Wait until every sequence has got its last token."""
        while not self.finished:
            await self.progress()

    def add_token(self, index: int) -> None:
        """Note one more token of a sequence."""
        self.tokens[index] += 1
        self._news.set()

    def finish(self, index: int) -> None:
        """Note that a sequence has got its last token."""
        self.ended[index] = True
        self._unfinished -= 1
        self._news.set()


class Driver:
    """Steps an engine in real time."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._readers: dict[str, tuple[Generation, int]] = {}
        self._work = asyncio.Event()

    @contextmanager
    def generate(self, requests: Sequence[Request]) -> Iterator[Generation]:
        """Submit the sequences of one call.

        Raises:
            EngineBusyError: there is no room for all of them; then none is submitted.
        """
        generation = Generation(len(requests))
        now = asyncio.get_running_loop().time()
        try:
            for index, request in enumerate(requests):
                self.engine.submit(request, now)
                self._readers[request.id] = (generation, index)
            self._work.set()
            yield generation
        finally:
            for request in requests:
                if self._readers.pop(request.id, None) is not None:
                    self.engine.abort(request.id)

    async def run(self) -> None:
        """Step the engine whenever there is work, until cancelled."""
        clock = asyncio.get_running_loop().time
        due = clock()
        while True:
            if self.engine.idle:
                self._work.clear()
                await self._work.wait()
                due = clock()
            result = self.engine.step()
            due = max(due, clock() - CATCH_UP) + result.duration
            await asyncio.sleep(max(0.0, due - clock()))
            self._hand_out(result)

    def _hand_out(self, result: StepResult) -> None:
        # Calls that ended while the step ran are no longer among the readers.
        for request_id in result.emitted:
            reader = self._readers.get(request_id)
            if reader is not None:
                generation, index = reader
                generation.add_token(index)
        for request_id in result.finished:
            reader = self._readers.pop(request_id, None)
            if reader is not None:
                generation, index = reader
                generation.finish(index)
