"""Hands batches over to a thread that has all the time it needs.

Rules this module keeps:

* Whoever hands over never waits. At most `BATCHES` wait for the thread; what comes then is lost, which
  `Handover.put` says.
* When `Handover.working` ends, everything that was handed over has been worked at.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")

BATCHES = 64
"""Batches that may wait: some six seconds."""


class Handover(Generic[T]):
    """Gives each batch to ``work`` in a thread of its own, one after the other; it must not raise."""

    def __init__(self, name: str, work: Callable[[T], None]) -> None:
        self._name = name
        self._work = work
        self._batches: queue.Queue[T | None] = queue.Queue(BATCHES)

    def put(self, batch: T) -> bool:
        """Hand a batch over; say whether it was taken."""
        try:
            self._batches.put_nowait(batch)
        except queue.Full:
            return False
        return True

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Work inside the block."""
        thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._batches.put(None)
            thread.join()

    def _run(self) -> None:
        while (batch := self._batches.get()) is not None:
            self._work(batch)
