"""Small settings and records to score."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from extproc.sim.drill.history import End, Record
from extproc.sim.drill.policy import Offer
from extproc.sim.drill.setting import Setting
from extproc.sim.drill.workload import Call

MakeRecord = Callable[..., Record]


@pytest.fixture
def setting() -> Setting:
    """The standard setting, ten seconds long."""
    return Setting(warm_up=2.0, measured=6.0, tail=2.0)


@pytest.fixture
def record() -> MakeRecord:
    """Make a record; by default one that was in time."""

    def make(
        ident: str,
        *,
        at: float = 0.0,
        rank: int = 0,
        tenant: str = "a",
        prompt: int = 100,
        output: int = 11,
        **changes: Any,
    ) -> Record:
        call = Call(ident, at, rank, tenant, "chat", prompt, output, 512)
        offer = Offer(ident, rank, tenant, "chat", prompt, 512)
        made = Record(call, offer, 0, counts=True, seen=0)
        made.end, made.decided, made.epoch = End.COMPLETED, 1, 0
        made.sent_at, made.first_at, made.ended_at = at, at + 1.0, at + 2.0
        for name, value in changes.items():
            setattr(made, name, value)
        return made

    return make
