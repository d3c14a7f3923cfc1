"""Calls the gatekeeper's `pump` when there is a reason to, and never else.

Rules this module keeps:

* Reasons are the bell (a call came to wait, capacity may have come free) and the next deadline. It
  does not poll.
* However often the bell is rung before the pump comes round, it comes round once.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable


class Pump:
    """Runs ``turn`` again and again; it says when it must run again at the latest."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._bell = asyncio.Event()

    def ring(self) -> None:
        """Ask for a turn soon."""
        self._bell.set()

    async def run(self, turn: Callable[[], float]) -> None:
        """Run until cancelled."""
        while True:
            self._bell.clear()
            deadline = turn()
            wait = None if deadline == math.inf else max(0.0, deadline - self._clock())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._bell.wait()
