"""Tells the other Tidegates that this one lives and what it has promised, and hears the same of them.

Rules this module keeps:

* What is told is the whole state, each time: what was lost is made up for by the next time.
* What others have promised counts as promised, and no longer as load of unknown origin (`Pool.shared`).
  Of who was not heard of for `SILENCE` seconds it does not count any more; his load then shows in the
  engines' readings, as all load did before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import msgspec

from extproc.core.capacity import Pool
from extproc.core.endpoint import Promised
from extproc.sharing.link import MEMBERS, SILENCE, Link, LinkDownError, Script

BEAT = 0.25
"""Seconds between two times."""
WORDS = "words"
"""The key of what each has told."""

_MEMBERS = Script("members.lua")

PoolWord = tuple[int, dict[str, Promised]]
"""Exchanges in flight, and what is promised by endpoint."""
_decoder = msgspec.msgpack.Decoder(dict[str, PoolWord])


class Members:
    """See the module's rules.

    Attributes:
        count: how many are alive, as last heard; at least 1.

    Args:
        link: the way to Redis.
        name: this Tidegate's, unique.
        pools: whose promises are told; books that others' are entered into.
        clock: seconds, the pools' one.
        beaten: called after each time, heard or not.
        unknown: called where Redis did not know of us, or no longer.
    """

    def __init__(
        self,
        link: Link,
        name: str,
        pools: Mapping[str, Pool],
        clock: Callable[[], float],
        *,
        beaten: Callable[[], None],
        unknown: Callable[[], None],
    ) -> None:
        self.count = 1
        self._link = link
        self._name = name
        self._pools = pools
        self._clock = clock
        self._beaten = beaten
        self._unknown = unknown
        self._heard_at = -SILENCE

    async def run(self) -> None:
        """Tell and hear until cancelled."""
        while True:
            await self.beat()
            await asyncio.sleep(BEAT)

    async def beat(self) -> None:
        """Tell and hear once."""
        word = msgspec.msgpack.encode(self._word())
        try:
            self.count, new, *told = await self._link.call(
                _MEMBERS, (MEMBERS, WORDS), self._name, str(SILENCE), word
            )
        except LinkDownError:
            if self._clock() - self._heard_at >= SILENCE:
                self._enter([])
        else:
            self._heard_at = self._clock()
            if new:
                self._unknown()
            self._enter([_decoder.decode(each) for each in told])
        self._beaten()

    def _word(self) -> dict[str, PoolWord]:
        now = self._clock()
        return {
            name: (
                pool.in_flight,
                {
                    endpoint: Promised(state.promises.peak, state.promises.current(now))
                    for endpoint, state in pool.endpoints.items()
                    if state.promises
                },
            )
            for name, pool in self._pools.items()
            if pool.in_flight
        }

    def _enter(self, words: list[dict[str, PoolWord]]) -> None:
        for name, pool in self._pools.items():
            in_flight, promised = 0, dict[str, Promised]()
            for flying, endpoints in (word[name] for word in words if name in word):
                in_flight += flying
                for endpoint, (peak, current) in endpoints.items():
                    known = promised.get(endpoint, Promised())
                    promised[endpoint] = Promised(known.peak + peak, known.current + current)
            pool.shared(in_flight, promised)
