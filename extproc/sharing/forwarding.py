"""Ends of exchanges that Envoy's access log told the wrong Tidegate, handed over to whose they are.

Where several Tidegates stand behind one Envoy, each of its threads logs to any one of them, whoever
has decided. An exchange's id begins with the name of its Tidegate.

Rules this module keeps:

* What is not ours is handed over at once, and ours is fetched several times a second: well within the
  time that `extproc.edge.endings` waits.
* What was handed over is kept in Redis until its owner says that he has it. So an answer of Redis that
  is lost costs nothing; what comes twice is told once (`Endings`).
* What Redis has forgotten is handed over again: all that its owner may not have fetched by then.
* Of a Tidegate that is dead nobody waits for the end: what it would have been told is told as it is. A
  Redis that has just started knows of nobody, and is not believed that they are dead.
* While Redis is gone, ends wait for it, and those that wait for ends are patient (`Forwarder.late`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections import deque
from collections.abc import Callable

import msgspec

from extproc.core.records import Ended
from extproc.sharing.link import MEMBERS, SILENCE, Link, LinkDownError, Script

log = logging.getLogger(__name__)

BEAT = 0.25
"""Seconds between two times that the own ones are fetched at least."""
CATCH_UP = 5.0
"""Seconds after Redis has come back in which the others come back to it as well."""
MOST = 100_000
"""Ends that may wait for Redis; what comes then is told as it is."""

FETCHED = 2.0
"""Seconds after which what was handed over has been fetched, unless Redis was gone."""
SINCE = "members-since"
"""The key that says since when Redis knows who is alive."""

_FORWARD = Script("forward.lua")
_decoder = msgspec.msgpack.Decoder(list[Ended])


class Forwarder:
    """See the module's rules.

    Attributes:
        forwarded: ends that others were told.

    Args:
        link: the way to Redis.
        name: this Tidegate's; every id of its exchanges begins with it, and all names are as long.
        tell: hears of ends that are ours, or nobody's.
        others: says how many Tidegates share, this one among them.
        clock: seconds.
    """

    def __init__(
        self,
        link: Link,
        name: str,
        tell: Callable[[Ended], None],
        *,
        others: Callable[[], int],
        clock: Callable[[], float],
    ) -> None:
        self.forwarded = 0
        self._link = link
        self._name = name
        self._tell = tell
        self._others = others
        self._clock = clock
        self._waiting: dict[str, list[Ended]] = {}
        self._count = 0
        self._last = "0-0"
        self._since = b""
        self._kept: deque[tuple[float, dict[str, list[Ended]]]] = deque()
        self._alone_from = self._late_until = -math.inf
        self._work = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Forwarder: {self._count} waiting, {self.forwarded} forwarded>"

    @property
    def late(self) -> bool:
        """Whether ends that others have heard of may come late, because Redis is gone, or was."""
        now = self._clock()
        if self._others() > 1:  # of whom a Redis that is new does not know at once
            self._alone_from = now + CATCH_UP
        if not self._link.up:
            self._late_until = now + CATCH_UP
        return now < min(self._alone_from, self._late_until)

    def logged(self, record: Ended) -> None:
        """Hear from the access log how an exchange ended, anybody's."""
        owner = record.id[: len(self._name)]
        if owner == self._name or self._count >= MOST:
            self._tell(record)
            return
        self._waiting.setdefault(owner, []).append(record)
        self._count += 1
        self._work.set()

    async def run(self) -> None:
        """Hand over and fetch until cancelled."""
        while True:
            self._work.clear()
            with contextlib.suppress(LinkDownError):
                await self.exchange()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BEAT):
                    await self._work.wait()

    async def exchange(self) -> None:
        """Hand over and fetch once.

        Raises:
            LinkDownError: no answer.
        """
        said, self._waiting, self._count = self._waiting, {}, 0
        keys = (MEMBERS, SINCE, _stream(self._name), *map(_stream, said))
        words: list[str | bytes] = []
        for owner, ends in said.items():
            words += owner, msgspec.msgpack.encode(ends)
        try:
            since, dead, *fresh = await self._link.call(
                _FORWARD, keys, str(SILENCE), self._last, *words
            )
        except BaseException:
            self._put_back(said)
            raise
        for each in dead:
            for record in said.pop(each.decode()):
                self._tell(record)
        self.forwarded += sum(map(len, said.values()))
        self._keep(since, said)
        for number, told in zip(fresh[::2], fresh[1::2], strict=True):
            self._last = number.decode()
            self._hear(told)

    def _keep(self, since: bytes, said: dict[str, list[Ended]]) -> None:
        """Keep what was handed over for a while, and hand it over again to a Redis that is new."""
        now = self._clock()
        if since != self._since:
            self._since = since
            for _, ends in self._kept:
                self._put_back(ends)
            self._kept.clear()
            self._work.set()
        while self._kept and self._kept[0][0] + FETCHED <= now:
            self._kept.popleft()
        if said:
            self._kept.append((now, said))

    def _put_back(self, said: dict[str, list[Ended]]) -> None:
        for owner, ends in said.items():
            self._waiting.setdefault(owner, [])[:0] = ends
            self._count += len(ends)

    def _hear(self, told: bytes) -> None:
        try:
            ends = _decoder.decode(told)
        except msgspec.DecodeError:  # of a later version that shares this Redis
            log.error("ends of exchanges cannot be read")
            return
        for each in ends:
            self._tell(each)


def _stream(name: str) -> str:
    return f"ends:{name}"
