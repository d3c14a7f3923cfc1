"""A document that all Tidegates agree on: of all that were told, the one that ranks highest.

Rules this module keeps:

* Each tells its own and hears of a higher one, several times a second and when it has changed. So it
  does not matter whose way to Redis was down when, nor whether Redis has forgotten everything.
* While Redis is gone, everybody keeps what he has.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from extproc.sharing.link import Link, LinkDownError, Script

BEAT = 0.25
"""Seconds between two times."""

_AGREE = Script("agree.lua")


class Agreement:
    """See the module's rules.

    Args:
        link: the way to Redis.
        key: names the document.
        mine: returns the rank of the own document, compared as text, and the document.
        adopt: takes over one that ranks higher.
    """

    def __init__(
        self,
        link: Link,
        key: str,
        mine: Callable[[], tuple[str, bytes]],
        adopt: Callable[[bytes], Awaitable[None]],
    ) -> None:
        self._link = link
        self._key = key
        self._mine = mine
        self._adopt = adopt
        self._changed = asyncio.Event()

    def publish(self) -> bool:
        """Have the own document told at once; say whether there is a way to do so."""
        self._changed.set()
        return self._link.up

    async def run(self) -> None:
        """Tell and hear until cancelled."""
        while True:
            self._changed.clear()
            with contextlib.suppress(LinkDownError):
                await self.exchange()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BEAT):
                    await self._changed.wait()

    async def exchange(self) -> None:
        """Tell and hear once.

        Raises:
            LinkDownError: no answer.
        """
        rank, document = self._mine()
        higher = await self._link.call(_AGREE, (self._key,), rank, document)
        if higher is not None:
            await self._adopt(higher)
