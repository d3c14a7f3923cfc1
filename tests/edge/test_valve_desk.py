"""The valve's hands: what Envoys are told, and what becomes of what they say."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest
from envoy.service.accesslog.v3 import als_pb2

from extproc.core.capacity import Load, Pool, PoolLimits
from extproc.core.classes import ServiceClass
from extproc.core.controller import Action, Verdict
from extproc.core.modes import Mode, ModeGate
from extproc.core.outcomes import Outcome
from extproc.core.readings import Reading
from extproc.core.reasons import Reason
from extproc.core.records import Decided, Ended, WaitEnd
from extproc.core.valve import Valve
from extproc.edge.valve_desk import ValveDesk

CLASSES = (
    ServiceClass("P0", 0, strict=True),
    ServiceClass("P1", 1, close=0.08, open=0.12),
    ServiceClass("P2", 2, close=0.15, open=0.2),
)


def decided(reason: Reason, *, shadow: bool = False) -> Decided:
    verdict = Verdict(Action.SHED, reason, Load(None, 1.0, 0, 1))
    return Decided("x", "", "m", "chat", "t", "P2", "", 1, None, verdict, 0.0, shadow)


@dataclass
class House:
    """A desk with a clock that the test moves, and all that it says."""

    now: float = 0.0
    told: list[dict[str, float]] = field(default_factory=list)
    tallied: list[tuple[str, str, Reason, int]] = field(default_factory=list)
    records: list[Decided] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pool = Pool("m", PoolLimits(64, stale_after=1e9, unknown_after=1e9), CLASSES)
        self.pool.join("e")
        self.gate = ModeGate(CLASSES)
        self.desk = ValveDesk(
            Valve(["m"], CLASSES, through=50.0),
            self.gate,
            {"m": self.pool},
            sampled=20.0,
            clock=lambda: self.now,
            tallies=(self,),
            record=self.records.append,
        )
        self.desk.discovery.publish = lambda layer: self.told.append(dict(layer))  # type: ignore[method-assign]

    def counted(self, pool: str, service_class: str, reason: Reason, count: int) -> None:
        self.tallied.append((pool, service_class, reason, count))

    def flooded(self, reason: Reason, *, shadow: bool = False) -> dict[str, float]:
        """Let 2,000 calls a second be refused for a while; return what Envoys are told then."""
        for _ in range(3):
            self.desk.turn()
            self.now += 0.05
            for _ in range(100):
                self.desk.decided(decided(reason, shadow=shadow))
        self.desk.turn()
        return self.told[-1]


def test_where_nothing_happens_the_first_stage_alone_is_on() -> None:
    house = House()
    house.desk.turn()
    assert house.told == [{"tidegate.first": 1.0, "tidegate.sampled": 1.0}]


@pytest.mark.parametrize(
    ("mode", "reason"),
    [
        (Mode.PROTECT, Reason.MODE_PROTECT),
        (Mode.TRANSACTIONS_ONLY, Reason.MODE_TRANSACTIONS_ONLY),
    ],
)
def test_a_mode_gives_its_reason(mode: Mode, reason: Reason) -> None:
    house = House()
    house.gate.switch(mode)
    told = house.flooded(Reason.CONCURRENCY)
    assert told[f"tidegate.shed.P2.{reason.value}.m"] > 0.9
    assert 0.0 < told["tidegate.sampled"] < 0.1
    assert [each.reason for each in house.desk.shut().values()] == [reason]


def test_a_watermark_gives_its_reason() -> None:
    house = House()
    reading = Reading(0.99, blocks=100, block_size=16, running=1, waiting=0, preemptions=0)
    house.pool.observe("e", reading, read_at=0.0, now=0.0)
    assert house.flooded(Reason.CONCURRENCY)["tidegate.shed.P2.kv_watermark.m"] > 0.9


def test_a_reason_that_envoy_does_not_know_is_a_flood() -> None:
    assert House().flooded(Reason.PREFILL_BACKLOG)["tidegate.shed.P2.flood.m"] > 0.9


def test_in_shadow_mode_nothing_is_acted_upon() -> None:
    house = House()
    assert house.flooded(Reason.CONCURRENCY, shadow=True).keys() == {
        "tidegate.first",
        "tidegate.sampled",
    }
    house.flooded(Reason.CONCURRENCY)
    house.gate.switch(Mode.SHADOW)
    house.desk.turn()
    assert house.told[-1] == {}
    assert house.desk.shut() == {}


async def test_it_turns_until_it_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    house = House()

    async def three_times(_: float) -> None:
        if len(house.told) == 3:
            raise RuntimeError

    monkeypatch.setattr(asyncio, "sleep", three_times)
    with pytest.raises(RuntimeError):
        await house.desk.run()
    assert len(house.told) == 3


def test_it_hears_of_all_else_and_does_nothing() -> None:
    desk = House().desk
    desk.waited("m", "P2", WaitEnd.SHED, 1.0)
    desk.ended(Ended("x", "t", "P2", "m", Outcome.COMPLETED, None, None, 1.0))
    assert desk.shut() == {}


def test_exact_numbers_are_added_up() -> None:
    house = House()
    house.desk.counted("m", "P2", Reason.FLOOD, 3)
    house.desk.counted("m", "P2", Reason.FLOOD, 4)
    assert house.desk.refused == {("m", "P2", Reason.FLOOD): 7}
    assert house.tallied == [("m", "P2", Reason.FLOOD, 3), ("m", "P2", Reason.FLOOD, 4)]


OWN = {
    "id": "i1", "tenant": "ads", "class": "P2", "pool": "m", "endpoint": "chat",
    "reason": "kv_watermark",
}  # fmt: skip


def logged(*entries: dict[str, str]) -> Any:
    message = als_pb2.StreamAccessLogsMessage()
    for own in entries:
        entry = message.http_logs.log_entry.add()
        entry.request.request_id = "r1"
        if own:
            entry.common_properties.metadata.filter_metadata["tidegate.valve"].update(own)
    return message


def test_a_sampled_refusal_becomes_a_record() -> None:
    house = House()
    house.desk.sampled(
        logged(
            OWN,
            {},
            {"tenant": "pay", "class": "P2"},  # one that was let in
            {**OWN, "pool": "elsewhere"},
            {**OWN, "reason": "admitted"},
        )
    )
    (record,) = house.records
    assert (record.id, record.request_id, record.tenant, record.service_class) == (
        "i1", "r1", "ads", "P2",
    )  # fmt: skip
    assert (record.pool, record.endpoint, record.by_envoy) == ("m", "chat", True)
    assert (record.verdict.action, record.verdict.reason) == (Action.SHED, Reason.KV_WATERMARK)
    assert record.verdict.load.endpoints == 1


def test_where_nobody_wants_records_there_are_none() -> None:
    house = House()
    desk = ValveDesk(
        Valve(["m"], CLASSES, through=1.0), house.gate, {"m": house.pool}, sampled=1.0, clock=float
    )
    desk.sampled(logged(OWN))
    assert house.records == []
