"""A ticket counts once among all Tidegates that have its key.

Rules this module keeps:

* A ticket is claimed when it is used, and nobody waits for the answer: it counts until another turns
  out to have claimed it first. By then its call has waited for a millisecond, or found room anyway.
* Without Redis tickets count, once in each process, as without sharing.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from extproc.sharing.link import Link, LinkDownError


class TicketClaims:
    """An `extproc.edge.ticket_desk.Claims`.

    Args:
        link: the way to Redis.
        wall_clock: returns Unix time in seconds.
    """

    def __init__(self, link: Link, wall_clock: Callable[[], float]) -> None:
        self._link = link
        self._wall_clock = wall_clock
        self._queue: asyncio.Queue[tuple[bytes, float, Callable[[], None]]] = asyncio.Queue()

    def claim(self, number: bytes, expires: float, lost: Callable[[], None]) -> None:
        """See `extproc.edge.ticket_desk.Claims`."""
        if self._link.up:
            self._queue.put_nowait((number, expires, lost))

    async def run(self) -> None:
        """Claim what is to be claimed, until cancelled."""
        while True:
            number, expires, lost = await self._queue.get()
            milliseconds = math.ceil((expires - self._wall_clock()) * 1000)
            try:
                first = await self._link.put_first(f"ticket:{number.hex()}", max(1, milliseconds))
            except LinkDownError:
                first = True
            if not first:
                lost()
            self._queue.task_done()
