"""Who is alive, and what each has promised."""

from __future__ import annotations

from typing import Any

from extproc.core.capacity import Pool, PoolLimits
from extproc.core.classes import ServiceClass
from extproc.core.endpoint import Promised
from extproc.core.promises import Demand
from extproc.sharing.link import PREFIX, SILENCE
from extproc.sharing.members import Members

CLASS = ServiceClass("P1", 0)
DEMAND = Demand(CLASS, prompt=100, max_output=50)


class One:
    """A Tidegate whose time a test decides."""

    def __init__(self, link: Any, name: str) -> None:
        self.now = 100.0
        self.beats = self.introduced = 0
        limits = PoolLimits(100, stale_after=1.0, unknown_after=9.0)
        self.pools = {each: Pool(each, limits, (CLASS,)) for each in ("qwen", "llama")}
        for pool in self.pools.values():
            for endpoint in ("a", "b"):
                pool.join(endpoint)
        self.members = Members(
            link, name, self.pools, lambda: self.now, beaten=self._count, unknown=self._introduce
        )

    def _introduce(self) -> None:
        self.introduced += 1

    def _count(self) -> None:
        self.beats += 1

    def admit(self, ident: str, endpoint: str = "a") -> None:
        self.pools["qwen"].reserve(ident, DEMAND, endpoint, self.now)

    def elsewhere(self, pool: str = "qwen") -> dict[str, Promised]:
        known = self.pools[pool].endpoints
        return {name: state.elsewhere for name, state in known.items()}


async def test_promises_are_told_and_summed_up(server: Any, linked: Any) -> None:
    link = await linked(server)
    one, two, three = (One(link, name) for name in ("one", "two", "three"))
    two.admit("x")
    three.admit("y")
    three.admit("z", "b")
    for each in (two, three, one):
        await each.members.beat()

    assert (one.members.count, one.beats) == (3, 1)
    assert one.elsewhere() == {"a": Promised(300.0, 200.0), "b": Promised(150.0, 100.0)}
    assert one.elsewhere("llama") == {"a": Promised(), "b": Promised()}
    assert (one.pools["qwen"].elsewhere, one.pools["llama"].elsewhere) == (3, 0)
    await three.members.beat()
    assert three.elsewhere() == {"a": Promised(150.0, 100.0), "b": Promised()}, "not its own"


async def test_what_has_ended_counts_no_more(server: Any, linked: Any) -> None:
    link = await linked(server)
    one, two = One(link, "one"), One(link, "two")
    two.admit("x")
    await two.members.beat()
    await one.members.beat()
    two.pools["qwen"].release("x")
    await two.members.beat()
    await one.members.beat()

    assert one.elsewhere() == {"a": Promised(), "b": Promised()}
    assert one.pools["qwen"].elsewhere == 0


async def test_who_is_silent_is_dead(server: Any, linked: Any) -> None:
    link = await linked(server)
    one, two = One(link, "one"), One(link, "two")
    two.admit("x")
    await two.members.beat()
    await one.members.beat()
    assert one.pools["qwen"].elsewhere == 1
    with server.client as client:
        client.zincrby(f"{PREFIX}members", -SILENCE, "two")
    await one.members.beat()

    assert (one.members.count, one.pools["qwen"].elsewhere) == (1, 0)


async def test_without_redis_the_last_word_counts_for_a_while(own_server: Any, linked: Any) -> None:
    link = await linked(own_server)
    one, two = One(link, "one"), One(link, "two")
    two.admit("x")
    await two.members.beat()
    await one.members.beat()
    own_server.stop()
    await one.members.beat()
    assert (one.members.count, one.pools["qwen"].elsewhere) == (2, 1)

    one.now += SILENCE
    await one.members.beat()
    assert (one.members.count, one.pools["qwen"].elsewhere) == (2, 0)
    assert one.beats == 3


async def test_who_was_forgotten_hears_of_it(server: Any, linked: Any) -> None:
    link = await linked(server)
    one = One(link, "one")
    for _ in range(3):
        await one.members.beat()
    assert one.introduced == 1
    with server.client as client:
        client.flushall()
    await one.members.beat()

    assert (one.introduced, one.members.count) == (2, 1)
