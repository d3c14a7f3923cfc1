"""An end that Envoy tells the wrong Tidegate comes to the right one, once, also where Redis was gone."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from extproc.core.capacity import Pool
from extproc.core.outcomes import Outcome
from extproc.core.records import Ended
from extproc.sharing.forwarding import Forwarder
from extproc.sharing.link import PREFIX, Link, LinkDownError
from extproc.sharing.members import Members

ONE, OTHER, DEAD = "a" * 12, "b" * 12, "c" * 12


def end(owner: str, number: int = 1) -> Ended:
    ident = f"{owner}{number:08x}"
    return Ended(ident, "pay", "P0", "qwen", Outcome.COMPLETED, 12, 34, 1.5)


class Tidegate:
    """A forwarder, what it tells, and its time."""

    def __init__(self, link: Link, name: str) -> None:
        self.told: list[Ended] = []
        self.now, self.count = 100.0, 2
        self.link, self.name = link, name
        self.forwarder = Forwarder(
            link, name, self.told.append, others=lambda: self.count, clock=lambda: self.now
        )

    async def lives(self) -> None:
        pools: dict[str, Pool] = {}
        members = Members(
            self.link, self.name, pools, lambda: 0.0, beaten=lambda: None, unknown=lambda: None
        )
        await members.beat()


async def test_whose_it_is_hears_of_it_once(server: Any, linked: Any) -> None:
    link = await linked(server)
    one, other = Tidegate(link, ONE), Tidegate(link, OTHER)
    await other.lives()

    one.forwarder.logged(end(ONE))
    assert one.told == [end(ONE)]
    one.forwarder.logged(end(OTHER, 1))
    one.forwarder.logged(end(OTHER, 2))
    assert repr(one.forwarder) == "<Forwarder: 2 waiting, 0 forwarded>"
    await one.forwarder.exchange()
    assert repr(one.forwarder) == "<Forwarder: 0 waiting, 2 forwarded>"

    await other.forwarder.exchange()
    one.forwarder.logged(end(OTHER, 3))
    await one.forwarder.exchange()
    await other.forwarder.exchange()
    await other.forwarder.exchange()
    assert other.told == [end(OTHER, 1), end(OTHER, 2), end(OTHER, 3)]
    assert one.told == [end(ONE)]
    with server.client as client:
        assert client.xlen(f"{PREFIX}ends:{OTHER}") == 0
        assert client.xlen(f"{PREFIX}ends:{ONE}") == 0


async def test_a_dead_ones_is_told_as_it_is(server: Any, linked: Any) -> None:
    one = Tidegate(await linked(server), ONE)
    with server.client as client:
        client.set(f"{PREFIX}members-since", "1.5")
    one.forwarder.logged(end(DEAD))
    await one.forwarder.exchange()
    assert one.told == [end(DEAD)]
    assert one.forwarder.forwarded == 0


async def test_a_redis_that_has_forgotten_everybody_is_not_believed(
    server: Any, linked: Any
) -> None:
    link = await linked(server)
    one, other = Tidegate(link, ONE), Tidegate(link, OTHER)
    await other.lives()
    await one.forwarder.exchange()
    with server.client as client:
        client.flushall()
    one.forwarder.logged(end(OTHER))
    await one.forwarder.exchange()
    await other.forwarder.exchange()
    assert (one.told, other.told) == ([], [end(OTHER)])


async def test_what_was_sent_and_not_fetched_outlives_a_lost_answer(
    server: Any, linked: Any
) -> None:
    link = await linked(server)
    one, other = Tidegate(link, ONE), Tidegate(link, OTHER)
    await other.lives()
    one.forwarder.logged(end(OTHER))
    await one.forwarder.exchange()
    await other.forwarder.exchange()
    other.forwarder._last = "0-0"  # as if the answer had not come
    await other.forwarder.exchange()
    assert other.told == [end(OTHER), end(OTHER)]  # `Endings` tells it once


async def test_what_redis_forgets_before_it_was_fetched_is_handed_over_again(
    server: Any, linked: Any
) -> None:
    link = await linked(server)
    one, other = Tidegate(link, ONE), Tidegate(link, OTHER)
    await other.lives()
    one.forwarder.logged(end(OTHER, 1))
    await one.forwarder.exchange()
    await other.forwarder.exchange()
    one.now += 2.0  # the first has been fetched by now
    await one.forwarder.exchange()
    one.forwarder.logged(end(OTHER, 2))
    await one.forwarder.exchange()
    with server.client as client:
        client.flushall()
    one.forwarder.logged(end(OTHER, 3))
    await one.forwarder.exchange()
    await one.forwarder.exchange()
    await other.forwarder.exchange()
    assert other.told == [end(OTHER, 1), end(OTHER, 3), end(OTHER, 2)]


async def test_words_that_cannot_be_read_are_passed_over(server: Any, linked: Any) -> None:
    other = Tidegate(await linked(server), OTHER)
    with server.client as client:
        client.xadd(f"{PREFIX}ends:{OTHER}", {"ends": b"\xc1"})
    await other.forwarder.exchange()
    assert other.told == []


async def test_while_redis_is_gone_ends_wait_for_it(own_server: Any, linked: Any) -> None:
    link = await linked(own_server)
    one, other = Tidegate(link, ONE), Tidegate(link, OTHER)
    late = [one.forwarder.late]
    own_server.stop()
    one.forwarder.logged(end(OTHER, 1))
    for _ in range(2):
        with pytest.raises(LinkDownError):
            await one.forwarder.exchange()
    assert one.told == []
    late.append(one.forwarder.late)
    one.count = 1
    late.append(one.forwarder.late)  # a Redis that is new does not know the others yet
    one.now += 5.0
    late.append(one.forwarder.late)  # who is alone waits for nobody
    one.count = 2
    late.append(one.forwarder.late)
    assert late == [False, True, True, False, True]

    own_server.start()
    async with asyncio.timeout(10):
        while not link.up:  # noqa: ASYNC110 (it says nothing)
            await asyncio.sleep(0.01)
    await other.lives()
    one.forwarder.logged(end(OTHER, 2))
    await one.forwarder.exchange()
    await other.forwarder.exchange()
    assert other.told == [end(OTHER, 1), end(OTHER, 2)]
    late = []
    for seconds in (4.9, 0.2):  # the others come back a little later
        one.now += seconds
        late.append(one.forwarder.late)
    assert late == [True, False]


async def test_more_than_can_wait_is_told_as_it_is(
    server: Any, linked: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("extproc.sharing.forwarding.MOST", 1)
    one = Tidegate(await linked(server), ONE)
    one.forwarder.logged(end(OTHER, 1))
    one.forwarder.logged(end(OTHER, 2))
    assert one.told == [end(OTHER, 2)]


async def test_it_runs_until_it_is_cancelled(server: Any, linked: Any) -> None:
    link = await linked(server)
    one, other = Tidegate(link, ONE), Tidegate(link, OTHER)
    await other.lives()
    tasks = [asyncio.create_task(each.forwarder.run()) for each in (one, other)]
    one.forwarder.logged(end(OTHER))
    async with asyncio.timeout(10):
        while not other.told:  # noqa: ASYNC110 (it says nothing)
            await asyncio.sleep(0.01)
    for each in tasks:
        each.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await each
    assert other.told == [end(OTHER)]
