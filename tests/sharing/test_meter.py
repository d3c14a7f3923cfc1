"""Several Tidegates count together: what they take, what they hold, and what when Redis is gone."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from extproc.core.capacity import Pool, PoolLimits
from extproc.core.classes import Classification, Payer, ServiceClass
from extproc.core.controller import Candidate, Refusal
from extproc.core.limits import Level, Plan, Rate
from extproc.core.metering import Taking
from extproc.core.outcomes import End, Outcome
from extproc.core.reasons import Reason
from extproc.quota.ports import Hold, Settlement
from extproc.sharing.link import PREFIX, SILENCE
from extproc.sharing.meter import LINGER, REFRESH
from extproc.sharing.room import Sharing

CLASS = ServiceClass("P1", 0)
SLOW = Plan("slow", Rate(1, burst=60), Rate(1, burst=6000))
"""Whose buckets of 60 and 6000 fill so slowly that a test does not see it."""
OTHER = Plan("other", quota=1 << 40)
DONE = End(Outcome.COMPLETED, 10, 20)


class Tidegate:
    """One of several that share a server; time can be moved on, but does not stand still."""

    def __init__(self, url: str, name: str) -> None:
        self.ahead = 0.0
        self.written: list[Hold | Settlement] = []
        self.pool = Pool("qwen", PoolLimits(1000, stale_after=1.0, unknown_after=9.0), (CLASS,))
        self.pool.join("a")
        self.sharing = Sharing(
            url,
            name,
            {"qwen": self.pool},
            outbox=self,
            clock=lambda: time.monotonic() + self.ahead,
            wall_clock=time.time,
            rng=random.Random(1),
        )
        self.meter = self.sharing.meter
        self.link = self.sharing.link
        self.name = name
        self.calls = 0

    @property
    def now(self) -> float:
        return time.monotonic() + self.ahead

    def put(self, record: Hold | Settlement) -> None:
        self.written.append(record)

    async def until(self, wanted: Callable[[], bool]) -> None:
        for _ in range(5000):
            if wanted():
                return
            await asyncio.sleep(0.002)
        raise AssertionError(f"never: {self.sharing!r}")

    def ask(
        self, plan: Plan, tokens: int = 100, *, account: str = "a"
    ) -> tuple[str, asyncio.Future[Refusal | None]]:
        """Ask for a call; return its id, and the answer when it is there."""
        self.calls += 1
        ident = f"{self.name}-{self.calls}"
        payer = Payer(account, plan)
        who = Classification(account, "", CLASS, None, None, (), None, None, payer=payer)
        call = Candidate(ident, who, 0, 10, max_output=tokens)
        answer: asyncio.Future[Refusal | None] = asyncio.get_running_loop().create_future()
        taken = self.meter.take(call, self.pool, self.now, answer.set_result)
        if taken is not Taking.ASKED:
            answer.set_result(None if taken is Taking.DONE else taken)
        return ident, answer

    async def take(self, plan: Plan, tokens: int = 100, **more: str) -> Refusal | None:
        return await self.ask(plan, tokens, **more)[1]

    def settle(self, ident: str, end: End = DONE) -> None:
        self.meter.settle(ident, end, 0.0, self.now)


Open = Callable[..., Any]


@contextlib.asynccontextmanager
async def running(sharing: Sharing) -> AsyncIterator[None]:
    task = asyncio.create_task(sharing.run())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@pytest.fixture
async def opened() -> AsyncIterator[Open]:
    async with AsyncExitStack() as stack:

        async def open_one(server: Any, name: str = "one", *, up: bool = True) -> Tidegate:
            made = Tidegate(server.url, name)
            await stack.enter_async_context(running(made.sharing))
            if up:
                await made.until(lambda: made.link.up)
                await made.sharing.members.beat()
            return made

        yield open_one


async def both(server: Any, opened: Open) -> tuple[Tidegate, Tidegate]:
    one, other = await opened(server, "one"), await opened(server, "other")
    await one.sharing.members.beat()
    return one, other


async def test_calls_that_are_due_together_are_asked_about_in_one_round_trip(
    server: Any, opened: Open
) -> None:
    one = await opened(server)
    before = one.link.round_trips

    answers = [one.ask(SLOW, 10)[1] for _ in range(64)]
    taken = await asyncio.gather(*answers)

    assert taken.count(None) == 60
    assert [each.reason for each in taken if each is not None] == [Reason.RATE_LIMITED] * 4
    assert one.link.round_trips - before <= 2, "one, and the members' beat perhaps"
    assert len(one.meter.pending) == 60


async def test_one_bucket_serves_all(server: Any, opened: Open) -> None:
    one, other = await both(server, opened)

    taken = [await each.take(SLOW, 10) for _ in range(40) for each in (one, other)]

    assert taken.count(None) == 60
    refusal = taken[-1]
    assert refusal is not None
    assert refusal.retry_after == pytest.approx(60.0, abs=5.0)
    for each in (one, other):
        requests, tokens = each.meter.levels(Payer("a", SLOW), each.now)
        assert requests is not None
        assert (requests.limit, requests.remaining) == (60, 0)
        assert requests.reset == pytest.approx(3600.0, abs=5.0)
        assert tokens is not None
        assert tokens.remaining == 5400


async def test_sixty_four_calls_at_once_at_two_tidegates_exceed_a_balance_by_nothing(
    server: Any, opened: Open
) -> None:
    one, other = await both(server, opened)
    plan = Plan("p", quota=2_345)

    answers = [each.ask(plan)[1] for _ in range(32) for each in (one, other)]
    taken = await asyncio.gather(*answers)

    assert taken.count(None) == 23
    held = [each.meter.holds.held("a") for each in (one, other)]
    assert sum(held) == 2_300
    refused = next(each for each in taken if each is not None)
    assert refused.reason is Reason.QUOTA_EXHAUSTED


async def test_a_charge_counts_at_the_others_until_the_ledger_has_told_it(
    server: Any, opened: Open
) -> None:
    one, other = await both(server, opened)
    plan = Plan("p", quota=1_000)
    ident, answer = one.ask(plan, 900)
    assert await answer is None
    one.settle(ident, End(Outcome.COMPLETED, 0, 800))
    assert [type(each) for each in one.written] == [Hold, Settlement]

    refusal = await other.take(plan, 300)
    assert refusal is not None
    assert (refusal.reason, refusal.value, refusal.threshold) == (
        Reason.QUOTA_EXHAUSTED, 300, 200,
    )  # fmt: skip
    one.ahead += LINGER
    one.meter.sweep(one.now)
    with server.client as client:
        await one.until(lambda: not client.hexists(f"{PREFIX}account:a", "one"))
    other.ahead += REFRESH
    assert (await other.take(plan, 300)) is not None, "the own books are as last heard"
    await other.until(lambda: other.meter.free("a", 1000) == 1000)
    assert await other.take(plan, 300) is None


async def test_what_one_gives_back_another_may_spend(server: Any, opened: Open) -> None:
    one, other = await both(server, opened)
    ident, answer = one.ask(SLOW, 5_950)
    assert await answer is None
    assert await other.take(SLOW, 100) is not None

    one.settle(ident)
    other.ahead += REFRESH
    assert await other.take(SLOW, 100) is not None, "the own books are as last heard"
    await other.until(lambda: other.meter.look_at_rate(Payer("a", SLOW), 100, other.now) is None)
    assert await other.take(SLOW, 100) is None


async def test_who_leaves_while_it_is_asked_has_taken_nothing(server: Any, opened: Open) -> None:
    one = await opened(server)
    ident, answer = one.ask(SLOW)
    one.meter.give_back(ident, one.now)
    await one.until(lambda: one.meter.levels(Payer("a", SLOW), one.now)[0] == Level(60, 60, 0.0))

    assert not answer.done()
    assert (one.written, one.meter.pending) == ([], {})
    ident, answer = one.ask(SLOW)
    assert await answer is None
    one.meter.give_back(ident, one.now)
    await one.until(lambda: one.meter.levels(Payer("a", SLOW), one.now)[0] == Level(60, 60, 0.0))


async def test_a_refused_call_that_has_left_is_no_matter(server: Any, opened: Open) -> None:
    one = await opened(server)
    plan = Plan("p", Rate(1))
    first, second = one.ask(plan), one.ask(plan)
    one.meter.give_back(second[0], one.now)

    assert await first[1] is None
    requests, _ = one.meter.levels(Payer("a", plan), one.now)
    assert requests is not None
    assert requests.remaining == 0


async def test_who_pays_nothing_is_not_asked_about(server: Any, opened: Open) -> None:
    one = await opened(server)
    who = Classification("t", "", CLASS, None, None, (), None, None)

    assert one.meter.take(Candidate("x", who, 0, 10), one.pool, one.now, _never) is Taking.DONE


def _never(_refusal: Refusal | None) -> None:
    raise AssertionError("nobody was asked")


async def test_without_redis_each_has_its_share_and_with_it_again_the_whole(
    own_server: Any, opened: Open
) -> None:
    one, other = await both(own_server, opened)
    assert (one.sharing.members.count, other.sharing.members.count) == (2, 2)
    own_server.stop()

    taken = [await each.take(SLOW, 10) for _ in range(40) for each in (one, other)]
    assert taken.count(None) == 60, "30 each"
    assert not one.link.up
    assert one.meter.buckets.price == 2

    own_server.start()
    await one.until(lambda: one.link.up)
    assert one.meter.buckets.price == 1
    assert await one.take(SLOW, 10, account="b") is None
    assert repr(one.sharing).startswith("<Sharing: <Link up, ")


async def test_calls_under_way_when_redis_goes_are_decided_all_the_same(
    own_server: Any, opened: Open
) -> None:
    one = await opened(own_server)
    first, answer = one.ask(SLOW, 10)
    assert await answer is None
    own_server.process.send_signal(signal.SIGSTOP)
    try:
        asked = [one.ask(SLOW, 10) for _ in range(70)]
        one.settle(first)
        one.meter.give_back(asked[0][0], one.now)
        taken = await asyncio.gather(*(answer for _, answer in asked[1:]))
    finally:
        own_server.process.send_signal(signal.SIGCONT)

    assert taken.count(None) == 59
    assert len(one.meter.pending) == 59
    requests, tokens = one.meter.levels(Payer("a", SLOW), one.now)
    assert requests is not None
    assert requests.remaining == 0
    assert tokens is not None
    assert tokens.remaining == 6000 - 30 - 590


async def test_a_flush_under_load_lets_no_more_through_than_one_burst(
    server: Any, opened: Open
) -> None:
    one, other = await both(server, opened)
    passed = 0
    for number in range(100):
        if number == 50:
            with server.client as client:
                client.flushall()
        for each in (one, other):
            passed += (await each.take(SLOW, 10)) is None
    assert 60 <= passed <= 120


async def test_a_flush_of_a_quota_under_load_lets_nothing_more_through(
    server: Any, opened: Open
) -> None:
    one, other = await both(server, opened)
    plan = Plan("p", quota=2_345)
    for number in range(40):
        if number == 10:
            with server.client as client:
                client.flushall()
            for each in (one, other):  # with its next beat, each tells again what it holds
                await each.sharing.members.beat()
                await each.take(OTHER, account="b")
        for each in (one, other):
            await each.take(plan)
    assert sum(each.meter.holds.held("a") for each in (one, other)) <= 2_345


async def test_a_server_that_takes_nothing_more_is_as_good_as_none(
    own_server: Any, opened: Open
) -> None:
    one = await opened(own_server)
    with own_server.client as client:
        client.config_set("maxmemory", "1")
        assert await one.take(SLOW, 10) is None
        assert not one.link.up
        client.config_set("maxmemory", "0")
    await one.until(lambda: one.link.up)


async def test_what_was_heard_of_others_is_forgotten_in_time(server: Any, opened: Open) -> None:
    one, other = await both(server, opened)
    plan = Plan("p", quota=1_000)
    assert await one.take(plan, 400) is None
    assert await other.take(plan, 700) is not None
    assert other.meter.free("a", 1_000) == 600
    other.ahead += SILENCE
    other.meter.sweep(other.now)

    assert other.meter.free("a", 1_000) == 1_000
    assert await other.take(plan, 700) is not None, "Redis has the word"


async def test_a_charge_while_redis_is_gone_is_told_when_it_is_back(
    own_server: Any, opened: Open
) -> None:
    one = await opened(own_server)
    plan = Plan("p", Rate(1, burst=60), quota=1000)
    ident, answer = one.ask(plan, 500)
    assert await answer is None
    own_server.stop()
    await one.until(lambda: not one.link.up)
    one.settle(ident, End(Outcome.COMPLETED, 0, 400))
    assert one.meter.free("a", 1000) == 600
    one.ahead += LINGER
    one.meter.sweep(one.now)
    own_server.start()
    await one.until(lambda: one.link.up)
    assert await one.take(plan, 600) is None
    assert await one.take(plan, 1) is not None


async def test_a_server_that_is_not_there_holds_nothing_up(opened: Open, tmp_path: Any) -> None:
    class Nowhere:
        url = f"unix://{tmp_path}/nothing"

    one = await opened(Nowhere(), up=False)
    assert [await one.take(SLOW, 10) for _ in range(61)].count(None) == 60
    await one.sharing.members.beat()
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(asyncio.Event().wait(), 0.15)
    assert not one.link.up
    assert repr(one.link) == "<Link down, 0 round trips>"


async def test_what_ended_while_redis_was_gone_is_held_there_no_more(
    own_server: Any, opened: Open
) -> None:
    one, other = await both(own_server, opened)
    plan = Plan("p", quota=1_000)
    ident, answer = one.ask(plan, 900)
    assert await answer is None
    own_server.process.send_signal(signal.SIGSTOP)
    await one.sharing.members.beat()
    one.settle(ident, End(Outcome.ENGINE_ERROR))
    own_server.process.send_signal(signal.SIGCONT)
    await other.until(lambda: one.link.up and other.link.up)
    with own_server.client as client:
        await one.until(lambda: not client.hexists(f"{PREFIX}account:a", "one"))
    assert await other.take(plan, 900) is None


async def test_while_the_ledger_is_behind_charges_stay_with_redis(
    server: Any, opened: Open
) -> None:
    one = await opened(server)
    behind = True
    one.meter._behind = lambda: behind
    plan = Plan("p", quota=1_000)
    ident, answer = one.ask(plan, 900)
    assert await answer is None
    one.settle(ident, End(Outcome.COMPLETED, 0, 800))
    for _ in range(3):
        one.ahead += LINGER
        one.meter.sweep(one.now)
    assert await one.take(plan, 1) is None
    with server.client as client:
        assert client.hget(f"{PREFIX}account:a", "one") == b"801"
        behind = False
        one.ahead += LINGER
        one.meter.sweep(one.now)
        await one.until(lambda: client.hget(f"{PREFIX}account:a", "one") == b"1")


async def test_of_too_many_charges_the_oldest_are_forgotten(
    server: Any, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("extproc.sharing.meter.MOST_CHARGES", 2)
    one = await opened(server)
    plan = Plan("p", quota=1_000)
    for cost in (1, 2, 4):
        ident, answer = one.ask(plan, 100)
        assert await answer is None
        one.settle(ident, End(Outcome.COMPLETED, 0, cost))
    with server.client as client:
        await one.until(lambda: client.hget(f"{PREFIX}account:a", "one") == b"6")
