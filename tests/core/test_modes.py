"""The operator's modes: which classes they close, as the first gate."""

from __future__ import annotations

from dataclasses import replace

import pytest

from extproc.core.capacity import Pool, PoolLimits
from extproc.core.classes import Classification, ServiceClass
from extproc.core.controller import Action, Candidate, Controller, Line, RequestLimits
from extproc.core.modes import Mode, ModeGate
from extproc.core.queue import Queue, QueueLimits
from extproc.core.tickets import Tickets

P0 = ServiceClass("P0", 0, strict=True, max_wait=10.0)
P1 = ServiceClass("P1", 1, max_wait=3.0)
P2 = ServiceClass("P2", 2, max_wait=3.0)
CLASSES = (P0, P1, P2)


def controller(gate: ModeGate, room: int = 10) -> Controller:
    pool = Pool("qwen", PoolLimits(room, stale_after=1.0, unknown_after=30.0), CLASSES)
    pool.join("e")
    line = Line(Queue(QueueLimits(100, 1 << 20), CLASSES), Tickets(b"key", window=60.0), 0.0)
    return Controller({"qwen": pool}, (gate, RequestLimits(1000)), {"qwen": line})


def candidate(service_class: ServiceClass, ident: str = "x", **more: int) -> Candidate:
    who = Classification("t", "", service_class, None, None, (), None, None)
    return Candidate(ident, who, 10, more.get("body", 10))


@pytest.mark.parametrize(
    ("mode", "reasons"),
    [
        (Mode.NORMAL, ["admitted", "admitted", "admitted"]),
        (Mode.PROTECT, ["admitted", "admitted", "mode_protect"]),
        (
            Mode.TRANSACTIONS_ONLY,
            ["admitted", "mode_transactions_only", "mode_transactions_only"],
        ),
        (Mode.SHADOW, ["admitted", "admitted", "admitted"]),
    ],
)
def test_each_mode_closes_its_classes(mode: Mode, reasons: list[str]) -> None:
    gate = ModeGate(CLASSES)
    gate.switch(mode)
    asked = controller(gate)

    verdicts = [asked.decide(candidate(each, each.name), "qwen", 0.0) for each in CLASSES]

    assert [verdict.reason.value for verdict in verdicts] == reasons
    closed = [each.name for each, why in zip(CLASSES, reasons, strict=True) if why != "admitted"]
    assert gate.closed() == closed
    assert [each.action is Action.SHED for each in verdicts] == [
        why != "admitted" for why in reasons
    ]


@pytest.mark.parametrize(
    ("classes", "protect", "transactions"),
    [
        ((replace(P1, rank=0),), [], []),
        ((P0,), [], []),
        ((replace(P1, rank=0), replace(P2, rank=1)), ["P2"], ["P2"]),
        ((P0, replace(P1, strict=True), P2), ["P2"], ["P2"]),
    ],
)
def test_the_highest_class_passes_in_every_mode(
    classes: tuple[ServiceClass, ...], protect: list[str], transactions: list[str]
) -> None:
    gate = ModeGate(classes)

    gate.switch(Mode.PROTECT)
    assert gate.closed() == protect
    gate.switch(Mode.TRANSACTIONS_ONLY)
    assert gate.closed() == transactions
    gate.switch(Mode.NORMAL)
    assert gate.closed() == []


def test_the_mode_is_asked_before_the_request_is_looked_at() -> None:
    gate = ModeGate(CLASSES)
    gate.switch(Mode.PROTECT)

    verdict = controller(gate).decide(candidate(P2, body=5000), "qwen", 0.0)

    assert verdict.reason.value == "mode_protect"
    assert repr(gate) == "<ModeGate protect: closed ['P2']>"


def test_those_that_wait_are_recalled_where_their_class_closes() -> None:
    gate = ModeGate(CLASSES)
    asked = controller(gate, room=1)
    asked.decide(candidate(P1, "runs"), "qwen", 0.0)
    for service_class in (P1, P2):
        waits = asked.decide(candidate(service_class, service_class.name), "qwen", 0.0)
        assert waits.action is Action.WAIT
    gate.switch(Mode.PROTECT)

    recalled = asked.recall("qwen", gate, 1.0)

    assert [(call.id, verdict.reason.value) for call, verdict in recalled] == [
        ("P2", "mode_protect")
    ]
    assert list(asked.lines["qwen"].calls) == ["P1"]
    assert asked.recall("qwen", gate, 1.0) == []


def test_a_call_that_goes_whatever_was_decided_is_counted_in_and_waits_no_more() -> None:
    asked = controller(ModeGate(CLASSES), room=1)
    asked.decide(candidate(P1, "runs"), "qwen", 0.0)
    waits = candidate(P1, "waits")
    asked.decide(waits, "qwen", 0.0)

    asked.admit(waits, "qwen", 0.5)

    assert asked.pools["qwen"].in_flight == 2
    assert len(asked.lines["qwen"].queue) == 0
    asked.release("waits", "qwen")
    assert asked.pools["qwen"].in_flight == 1
