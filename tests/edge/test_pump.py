"""The pump runs when it is rung for and at its deadlines, and never else."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

import pytest

from extproc.edge.pump import Pump


class Turns:
    """Counts turns and answers each with the next deadline."""

    def __init__(self, *deadlines: float) -> None:
        self.deadlines = list(deadlines)
        self.taken = 0
        self.changed = asyncio.Event()

    def __call__(self) -> float:
        self.taken += 1
        self.changed.set()
        return self.deadlines.pop(0) if self.deadlines else math.inf

    async def reach(self, number: int) -> None:
        async with asyncio.timeout(5):
            while self.taken < number:
                self.changed.clear()
                await self.changed.wait()


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def clock(at: float) -> Callable[[], float]:
    return lambda: at


async def test_it_turns_when_rung_and_once_for_many_rings() -> None:
    pump, turns = Pump(clock(0.0)), Turns()
    task = asyncio.create_task(pump.run(turns))
    await turns.reach(1)
    await settle()
    assert turns.taken == 1, "nobody rang"

    pump.ring()
    pump.ring()
    await settle()
    assert turns.taken == 2

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_it_turns_at_its_deadline() -> None:
    pump, turns = Pump(clock(10.0)), Turns(10.01, 9.0)
    task = asyncio.create_task(pump.run(turns))

    await turns.reach(3)
    await settle()
    assert turns.taken == 3

    task.cancel()
    await asyncio.wait([task])


async def test_a_ring_during_a_turn_is_not_lost() -> None:
    pump = Pump(clock(0.0))
    taken = 0

    def turn() -> float:
        nonlocal taken
        taken += 1
        if taken == 1:
            pump.ring()
        return math.inf

    task = asyncio.create_task(pump.run(turn))
    await settle()

    assert taken == 2
    task.cancel()
    await asyncio.wait([task])
