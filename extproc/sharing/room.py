"""Everything that a Tidegate shares with others, wired: made where `state.redis` is configured."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping

from extproc.core.capacity import Pool
from extproc.quota.ports import Outbox
from extproc.sharing.claims import TicketClaims
from extproc.sharing.link import Link
from extproc.sharing.members import Members
from extproc.sharing.meter import SharedMeter


class Sharing:
    """The link to Redis and what goes over it.

    Attributes:
        link: the way to Redis.
        meter: counts what tenants spend, together with the others.
        members: who the others are.
        claims: sees to it that tickets count once among all.

    Args:
        url: of Redis or Valkey.
        name: this Tidegate's, unique.
        pools: whose promises are shared.
        outbox, clock, wall_clock, behind: as of `SharedMeter`.
        rng: spreads what several Tidegates do.
    """

    def __init__(
        self,
        url: str,
        name: str,
        pools: Mapping[str, Pool],
        *,
        outbox: Outbox | None,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        rng: random.Random,
        behind: Callable[[], bool] = lambda: False,
    ) -> None:
        self._clock = clock
        self.link = Link(url, rng, self._changed)
        self.meter = SharedMeter(
            outbox, wall_clock, link=self.link, name=name, clock=clock, behind=behind
        )
        self.claims = TicketClaims(self.link, wall_clock)
        self.members = Members(
            self.link,
            name,
            pools,
            clock,
            beaten=self._beaten,
            unknown=self.meter.tell_again,
        )

    def __repr__(self) -> str:
        return f"<Sharing: {self.link!r}, {self.members.count} members, {self.meter!r}>"

    async def run(self) -> None:
        """Share until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for each in (self.link, self.members, self.meter, self.claims):
                tasks.create_task(each.run())

    def _changed(self, up: bool) -> None:
        self.meter.reckon(up=up, members=self.members.count)
        if up:
            self.meter.tell_again()

    def _beaten(self) -> None:
        self.meter.sweep(self._clock())
