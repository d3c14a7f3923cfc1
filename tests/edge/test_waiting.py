"""The gatekeeper where calls wait and come again: queue, tickets, and what is told of them."""

from __future__ import annotations

import gzip
import json

from extproc.core.capacity import Pool
from extproc.core.controller import (
    Action,
    Candidate,
    Refusal,
)
from extproc.core.reasons import Reason
from extproc.core.records import WaitEnd
from extproc.edge.exchange import Judgement
from extproc.edge.messages import Forward
from tests.edge.house import P1, House, answered, body


def test_a_call_waits_until_there_is_room() -> None:
    at = House()
    assert at.ask().hold == ("x1", "qwen")
    later = at.ask(body("second", max_tokens=500))
    assert later == Judgement(None, hold=("x2", "qwen"))
    assert (len(at.queue), at.rung) == (1, 1)
    assert at.pump() == []
    assert [record.id for record in at.records] == ["x1"], "nothing is decided yet"

    at.pass_time(1.5)
    at.admission.release(("x1", "qwen"))
    assert at.rung == 2, "room may have come free"
    (judgement,) = at.pump()

    assert isinstance(judgement.reply, Forward)
    assert judgement.reply.body is not None
    assert json.loads(judgement.reply.body)["max_tokens"] == 100
    assert judgement.hold == ("x2", "qwen")
    assert (len(at.queue), at.pool.in_flight) == (0, 1)
    assert at.waits == [("P1", WaitEnd.ADMITTED, 1.5)]
    record = at.records[-1]
    assert (record.id, record.verdict.action, record.seconds) == ("x2", Action.ADMIT, 0.0)
    at.admission.release(("x2", "qwen"))
    assert (at.pool.in_flight, at.rung) == (0, 2), "nobody waits: nobody is woken"


def test_a_call_that_waited_too_long_is_shed_with_a_ticket() -> None:
    at = House()
    at.ask()
    at.ask(body("second"))
    assert at.admission.pump() == 103.0

    at.pass_time(3.0)
    (judgement,) = at.pump()

    headers, said = answered(judgement)
    assert headers["x-tidegate-reason"] == "queue_deadline"
    assert headers["x-tidegate-verdict"] == "shed"
    assert said["tidegate"] == {
        "reason": "queue_deadline",
        "ticket": headers["x-tidegate-ticket"],
    }
    assert judgement.hold is None
    assert at.waits == [("P1", WaitEnd.SHED, 3.0)]
    assert (len(at.queue), len(at.tickets), at.pool.in_flight) == (0, 1, 1)


def test_a_client_that_leaves_while_waiting_frees_its_place() -> None:
    at = House()
    at.ask()
    at.ask(body("second"))

    at.pass_time(0.5)
    at.admission.release(("x2", "qwen"))
    at.admission.release(("x2", "qwen"))

    assert (len(at.queue), at.queue.bytes) == (0, 0)
    assert at.waits == [("P1", WaitEnd.LEFT, 0.5)]
    assert at.pump() == []
    assert [record.id for record in at.records] == ["x1"]


def test_a_client_that_leaves_as_its_turn_comes_gives_back_its_capacity() -> None:
    at = House()
    at.ask()
    at.ask(body("second"))
    at.admission.release(("x1", "qwen"))
    at.admission.pump()
    assert at.pool.in_flight == 1

    at.admission.release(("x2", "qwen"))

    assert at.pool.in_flight == 0


def test_a_class_that_does_not_wait_is_shed_at_once_with_a_ticket() -> None:
    at = House()
    at.ask()

    headers, said = answered(at.ask(body("hi"), tenant="anonymous"))

    assert headers["x-tidegate-reason"] == "concurrency"
    assert said["tidegate"]["ticket"] == headers["x-tidegate-ticket"]
    assert at.rung == 0


def test_a_class_that_does_not_wait_goes_before_nobody_who_does() -> None:
    at = House()
    at.ask()
    at.ask(body("second"))
    at.admission.release(("x1", "qwen"))

    headers, said = answered(at.ask(tenant="anonymous"))

    assert headers["x-tidegate-reason"] == "predicted_wait"
    assert said["tidegate"]["reason"] == "predicted_wait"
    assert len(at.pump()) == 1


def test_what_is_kept_back_for_tickets_is_not_given_to_others() -> None:
    at = House(room=10, reserve=0.1)
    for number in range(10):
        at.ask(body(f"{number}"))
    answered(at.ask(body("mine"), tenant="anonymous"))
    at.admission.release(("x1", "qwen"))

    headers, _ = answered(at.ask(body("other"), tenant="anonymous"))
    assert headers["x-tidegate-reason"] == "concurrency"
    assert isinstance(at.ask(body("mine"), tenant="anonymous").reply, Forward)


def test_what_is_kept_back_for_a_class_is_given_to_those_above() -> None:
    at = House(room=10, reserve=0.1)
    for number in range(10):
        at.ask(body(f"{number}"))
    answered(at.ask(body("mine"), tenant="anonymous"))
    at.admission.release(("x1", "qwen"))

    assert isinstance(at.ask(body("of P1")).reply, Forward)


def test_a_compressed_body_counts_as_large_as_it_is_kept() -> None:
    at = House()
    at.ask()
    raw = body("x" * 10_000)

    at.ask(gzip.compress(raw))

    assert at.queue.bytes == len(raw)


def test_a_full_queue_refuses_at_once() -> None:
    at = House(max_calls=1)
    at.ask()
    at.ask(body("second"))

    headers, _ = answered(at.ask(body("third")))

    assert headers["x-tidegate-reason"] == "queue_full"


def closing_p1(call: Candidate, pool: Pool, now: float) -> Refusal | None:
    closed = call.classification.service_class is P1
    return Refusal(Reason.MODE_PROTECT) if closed else None


def test_when_a_mode_closes_a_class_those_of_it_that_wait_are_answered_at_once() -> None:
    at = House()
    at.ask()
    at.ask(body("second"))
    at.pass_time(0.5)

    assert at.admission.switch(closing_p1, shadow=False) == 1
    (judgement,) = [each() for each in at.ready.values()]

    assert answered(judgement)[0]["x-tidegate-reason"] == "mode_protect"
    assert at.waits == [("P1", WaitEnd.SHED, 0.5)]
    assert (len(at.queue), at.pool.in_flight) == (0, 1)
    assert at.admission.switch(closing_p1, shadow=False) == 0


def test_in_shadow_mode_verdicts_are_recorded_and_every_call_passes_untouched() -> None:
    at = House()
    at.admission.switch(at.open_gate, shadow=True)

    judgements = [
        at.ask(body(max_tokens=5000)),
        at.ask(body("second")),
        at.ask(body("third"), tenant="anonymous"),
        at.ask(body("x" * (1 << 20))),
    ]

    told = [(each.verdict.action.value, each.verdict.reason.value) for each in at.records]
    assert told == [
        ("admit", "admitted"),
        ("wait", "waiting"),
        ("shed", "concurrency"),
        ("reject", "body_too_large"),
    ]
    assert all(each.shadow for each in at.records)
    for number, judgement in enumerate(judgements, start=1):
        assert isinstance(judgement.reply, Forward)
        assert (judgement.reply.body, judgement.reply.set_headers) == (None, ())
        assert dict(judgement.reply.metadata)["verdict"] == "admit", "or its end is not logged"
        assert (judgement.labels, judgement.hold) == (None, (f"x{number}", "qwen"))
    assert (at.pool.in_flight, len(at.queue), len(at.tickets)) == (4, 0, 0)

    for number in range(1, 5):
        at.admission.release((f"x{number}", "qwen"))
    assert at.pool.in_flight == 0
    at.now += 5.0
    at.endings.sweep()
    assert len(at.told) == 4


def test_those_that_wait_when_shadow_mode_begins_pass() -> None:
    at = House()
    at.ask()
    at.ask(body("second", max_tokens=5000))

    assert at.admission.switch(at.open_gate, shadow=True) == 0
    (judgement,) = [each() for each in at.ready.values()]

    assert isinstance(judgement.reply, Forward)
    assert judgement.reply.body is None
    assert at.waits == [("P1", WaitEnd.ADMITTED, 0.0)]
    assert (len(at.queue), at.pool.in_flight) == (0, 2)
    assert at.records[-1].verdict.action is Action.WAIT

    at.admission.switch(at.open_gate, shadow=False)
    at.ask(body("third"))
    assert len(at.queue) == 1, "verdicts are acted upon again"
