"""Who is told what the engines say.

Rules this module keeps:

* Calls come from the event loop, one at a time; they return at once and do not raise.
* For each endpoint of a pool: ``joined`` first, ``left`` last and exactly once, also when the fleet
  is cancelled; between them ``sending`` and then one of ``observed`` and ``failed``, again and again.
"""

from __future__ import annotations

from typing import Protocol

from extproc.core.readings import Reading


class Listener(Protocol):
    """Takes the news of a fleet. ``pool`` is the pool's name, ``endpoint`` is ``host:port``."""

    def joined(self, pool: str, endpoint: str) -> None:
        """An endpoint belongs to the pool from now on; nothing is known of it yet."""
        ...

    def left(self, pool: str, endpoint: str) -> None:
        """An endpoint belongs to the pool no more; nothing else comes about it."""
        ...

    def sending(self, pool: str, endpoint: str) -> None:
        """The endpoint is about to be asked: the moment to note what we think it holds."""
        ...

    def observed(self, pool: str, endpoint: str, reading: Reading, sent_at: float) -> None:
        """The endpoint answered. ``sent_at`` is the clock's time when it was asked, in seconds."""
        ...

    def failed(self, pool: str, endpoint: str, problem: str) -> None:
        """The endpoint could not be read; ``problem`` says why in one line."""
        ...

    def undiscovered(self, pool: str, problem: str) -> None:
        """The pool's endpoints could not be looked up: those known before stay."""
        ...
