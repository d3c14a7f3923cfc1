"""What an operator sets at one Tidegate is in force at all of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from extproc.config import AdjustmentError, Changes, Config, Role
from extproc.control.auth import Caller
from extproc.control.operations import Operations
from extproc.control.settings import SettingsFile
from extproc.core.modes import Mode
from extproc.sharing.agreement import Agreement
from extproc.sharing.link import LinkDownError

ALICE = Caller("alice", Role.OPERATOR, "here")


@dataclass
class Levers:
    """What was moved at one Tidegate; it may refuse thresholds."""

    moves: list[object] = field(default_factory=list)
    stubborn: bool = False

    def switch(self, mode: Mode) -> int:
        self.moves.append(mode.value)
        return 0

    def evict(self) -> int:
        return 0

    def adjust(self, changes: Changes) -> None:
        if self.stubborn:
            raise AdjustmentError("classes.P9: there is no such thing to adjust")
        self.moves.append(changes)

    def going_over(self, written: Config, changes: Changes) -> Callable[[], None]:
        return lambda: self.moves.append((written, changes))


@dataclass
class Gate:
    """One of several Tidegates."""

    operations: Operations
    levers: Levers
    agreement: Agreement
    link: Any

    @property
    def mode(self) -> Mode:
        return self.operations.settings.mode.mode

    async def until(self, mode: Mode) -> None:
        async with asyncio.timeout(10):
            while self.mode is not mode:  # noqa: ASYNC110 (by state, not by event)
                await asyncio.sleep(0.005)


Gates = Callable[..., Any]


@pytest.fixture
async def gates(linked: Any, tmp_path: Path) -> AsyncIterator[Gates]:
    """Start Tidegates that share a server."""
    running: list[asyncio.Task[None]] = []

    async def start(server: Any, name: str, *, stubborn: bool = False) -> Gate:
        link = await linked(server)
        levers = Levers(stubborn=stubborn)
        kept = SettingsFile(tmp_path / f"{name}.json")
        made = Operations(levers, file=kept, audit=None, wall_clock=counting())
        made.restore()
        agreement = Agreement(link, "settings", made.mine, made.adopt)
        made.publish = agreement.publish
        running.append(asyncio.create_task(agreement.run()))
        return Gate(made, levers, agreement, link)

    yield start
    for each in running:
        each.cancel()
    await asyncio.gather(*running, return_exceptions=True)


def counting() -> Callable[[], float]:
    times = iter(range(1000, 100_000))
    return lambda: float(next(times))


async def test_a_mode_is_in_force_everywhere(server: Any, gates: Gates) -> None:
    one, other = await gates(server, "one"), await gates(server, "other")

    changed = await one.operations.set_mode(Mode.TRANSACTIONS_ONLY, ALICE, "a peak")
    await other.until(Mode.TRANSACTIONS_ONLY)
    assert changed.warnings == ()
    assert other.operations.settings == one.operations.settings
    await other.operations.set_mode(Mode.NORMAL, ALICE, "over")
    await one.until(Mode.NORMAL)

    assert one.levers.moves == ["transactions_only", "normal"]
    assert other.levers.moves == ["transactions_only", "normal"]


async def test_one_that_starts_later_learns_what_is_in_force(server: Any, gates: Gates) -> None:
    one = await gates(server, "one")
    await one.operations.set_thresholds({"classes": {"P2": {"concurrency": 0.5}}}, ALICE, "x")
    await one.operations.set_mode(Mode.PROTECT, ALICE, "a peak")

    other = await gates(server, "other")
    await other.until(Mode.PROTECT)

    assert other.levers.moves == [{"classes": {"P2": {"concurrency": 0.5}}}, "protect"]


async def test_thresholds_that_do_not_fit_elsewhere_do_not_hold_up_the_mode(
    server: Any, gates: Gates, caplog: pytest.LogCaptureFixture
) -> None:
    one, other = await gates(server, "one"), await gates(server, "other", stubborn=True)
    await one.operations.set_thresholds({"classes": {"P9": {"concurrency": 0.5}}}, ALICE, "x")
    await one.operations.set_mode(Mode.PROTECT, ALICE, "a peak")

    await other.until(Mode.PROTECT)

    assert other.levers.moves == ["protect"]
    told = [each for each in caplog.records if each.message == "thresholds cannot be adopted"]
    assert 1 <= len(told) <= 2, "once for each setting"


async def test_while_redis_is_gone_all_keep_what_they_have_and_learn_the_rest_later(
    own_server: Any, gates: Gates
) -> None:
    one, other = await gates(own_server, "one"), await gates(own_server, "other")
    await one.operations.set_mode(Mode.PROTECT, ALICE, "a peak")
    await other.until(Mode.PROTECT)

    own_server.stop()
    async with asyncio.timeout(10):
        while one.link.up or other.link.up:
            with contextlib.suppress(LinkDownError):
                await one.agreement.exchange()
            with contextlib.suppress(LinkDownError):
                await other.agreement.exchange()
    changed = await one.operations.set_mode(Mode.NORMAL, ALICE, "over")
    assert changed.warnings == (
        "the other Tidegates do not know of this yet: Redis cannot be reached",
    )
    assert (one.mode, other.mode) == (Mode.NORMAL, Mode.PROTECT)

    own_server.start()  # it has forgotten everything
    await other.until(Mode.NORMAL)


async def test_what_is_lost_in_redis_is_told_again(server: Any, gates: Gates) -> None:
    one = await gates(server, "one")
    await one.operations.set_mode(Mode.PROTECT, ALICE, "a peak")
    with server.client as client:
        client.flushall()

    other = await gates(server, "other")

    await other.until(Mode.PROTECT)
