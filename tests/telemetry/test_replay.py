"""A decision log replayed through the core gives the same verdicts, whatever happened."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.capacity import Load, Pool, PoolLimits
from extproc.core.classes import Classification, ServiceClass
from extproc.core.controller import (
    Action,
    Candidate,
    Controller,
    Refusal,
    RequestLimits,
    Verdict,
)
from extproc.core.controller import (
    Line as Queueing,
)
from extproc.core.modes import Mode, ModeGate
from extproc.core.queue import Queue, QueueLimits
from extproc.core.readings import Reading
from extproc.core.reasons import Reason
from extproc.core.records import Decided
from extproc.core.replay import Marks, replay
from extproc.core.standing import Notes
from extproc.core.tickets import Subject, Tickets
from extproc.telemetry.lines import Line, decode, encode, line_of, past_of

P0 = ServiceClass("P0", 0, strict=True, close=0.03, open=0.05, max_wait=10.0, max_prompt=900)
P1 = ServiceClass("P1", 1, close=0.08, open=0.12, max_wait=3.0)
P2 = ServiceClass("P2", 2, close=0.15, open=0.20, concurrency=0.8, prefill_cap=600)
CLASSES = (P0, P1, P2)


class Day:
    """A pool on a busy day: what happens is decided by chance, what is decided is written down."""

    def __init__(self, seed: int, *, pick: bool, hasty: bool) -> None:
        self.chance = random.Random(seed)
        self.now = 0.0
        self.lines: list[bytes] = []
        classes = (replace(P0, max_wait=0.0) if hasty else P0, P1, P2)
        self.classes = classes
        limits = PoolLimits(12, stale_after=1.0, unknown_after=6.0, pick=pick)
        self.pool = Pool("qwen", limits, classes)
        self.tickets = Tickets(b"key", window=60.0)
        self.queue = Queue(QueueLimits(5, 4000), classes)
        self.gate = ModeGate(classes)
        self.controller = Controller(
            {"qwen": self.pool},
            (self.gate, RequestLimits(1500), self.rate),
            {"qwen": Queueing(self.queue, self.tickets, 0.2)},
        )
        self.running: list[str] = []
        self.waiting: dict[str, Candidate] = {}
        self.number = 0

    def rate(self, call: Candidate, pool: Pool, now: float) -> Refusal | None:
        if call.classification.tenant != "noisy" or self.chance.random() < 0.7:
            return None
        return Refusal(Reason.RATE_LIMITED, 60.0, 61.0, retry_after=2.0)

    def live(self, steps: int) -> None:
        happen = (
            [self.call] * 12 + [self.end] * 4 + [self.read] * 3 + [self.wait] * 4 + [self.pump] * 4
        )
        happen += [self.endpoint, self.mode, self.ticket]
        for _ in range(steps):
            self.chance.choice(happen)()

    def call(self) -> None:
        chance = self.chance
        self.number += 1
        service_class = chance.choice(self.classes)
        tenant = chance.choice(["a", "b", "noisy"])
        who = Classification(
            tenant, "chat", service_class, 64, service_class.max_prompt, (), None, None
        )
        call = Candidate(
            f"x{self.number}",
            who,
            chance.choice([5, 50, 500, 1000, 20000]),
            chance.choice([10, 1000, 1600]),
            defect=chance.choice([None] * 9 + ["it is no JSON: secret"]),
            max_output=chance.choice([None, 16, 64]),
            choices=chance.choice([1, 1, 3]),
            kept_bytes=chance.choice([10, 1000]),
            since=chance.choice([None, None, max(0.0, self.now - 3.0)]),
            notes=Notes(),
        )
        self.decided(call, self.controller.decide(call, "qwen", self.now))

    def decided(self, call: Candidate, verdict: Verdict, waited: float | None = None) -> None:
        if verdict.action is Action.WAIT:
            self.waiting[call.id] = call
        elif verdict.action is Action.ADMIT:
            self.running.append(call.id)
        who = call.classification
        record = Decided(
            call.id,
            "r",
            "qwen",
            "chat",
            who.tenant,
            who.service_class.name,
            who.task,
            call.prompt_tokens,
            who.max_output,
            verdict,
            1e-4,
            call=call,
            waited=waited,
        )
        self.lines.append(encode(line_of(record, 1e9 + self.now)))

    def end(self) -> None:
        if self.running:
            gone = self.running.pop(self.chance.randrange(len(self.running)))
            self.controller.release(gone, "qwen")

    def read(self) -> None:
        if self.pool.endpoints:
            name = self.chance.choice(sorted(self.pool.endpoints))
            used = self.chance.choice([0.0, 0.5, 0.8, 0.86, 0.9, 0.95, 1.0])
            blocks = self.chance.choice([None, 200])
            reading = Reading(used, blocks, blocks and 16, self.chance.randrange(4), 0, 0)
            self.pool.sending(name, self.now)
            self.pool.observe(name, reading, read_at=self.now, now=self.now)

    def wait(self) -> None:
        self.now += self.chance.choice([0.01, 0.2, 0.7, 2.0])

    def pump(self) -> None:
        for each in self.controller.pump("qwen", self.now):
            del self.waiting[each.call.id]
            self.decided(each.call, each.verdict, each.waited)

    def endpoint(self) -> None:
        name = self.chance.choice(["e1", "e2", "e3"])
        if name in self.pool.endpoints:
            self.pool.leave(name, self.now)
        else:
            self.pool.join(name)

    def mode(self) -> None:
        self.gate.switch(self.chance.choice([Mode.NORMAL, Mode.NORMAL, Mode.PROTECT]))
        for call, verdict in self.controller.recall("qwen", self.gate, self.now):
            del self.waiting[call.id]
            self.decided(call, verdict, 0.5)

    def ticket(self) -> None:
        self.number += 1
        subject = Subject("a", "P1", 1, "s", f"{self.number}".encode())
        self.tickets.issue(subject, ident=f"t{self.number}", arrived=self.now, now=self.now)


def told(verdict: Verdict) -> tuple[object, ...]:
    return (
        verdict.action.value,
        verdict.reason.value,
        verdict.threshold,
        verdict.value,
        verdict.free,
        verdict.endpoint,
        verdict.retry_after,
    )


@given(st.integers(0, 2**32), st.booleans(), st.booleans())
def test_whatever_happened_each_line_replays_to_its_verdict(
    seed: int, pick: bool, hasty: bool
) -> None:
    day = Day(seed, pick=pick, hasty=hasty)
    day.pool.join("e1")
    day.live(120)

    for text in day.lines:
        past = past_of(decode(text))
        assert told(replay(past)) == told(past.verdict), text


def test_the_days_above_meet_every_reason_of_the_core() -> None:
    met = set()
    for seed in range(60):
        day = Day(seed, pick=seed % 2 == 0, hasty=seed % 3 == 0)
        day.pool.join("e1")
        day.live(200)
        met |= {decode(text).reason.value for text in day.lines}

    assert met == {
        "admitted",
        "waiting",
        "mode_protect",
        "body_too_large",
        "bad_request",
        "prompt_too_long",
        "rate_limited",
        "no_endpoint",
        "kv_watermark",
        "kv_demand",
        "prefill_backlog",
        "concurrency",
        "queue_full",
        "queue_deadline",
        "predicted_wait",
    }


def test_a_line_holds_no_word_of_the_body() -> None:
    day = Day(3, pick=False, hasty=False)
    day.pool.join("e1")
    day.live(400)

    assert any(decode(text).unreadable for text in day.lines)
    assert not any(b"secret" in text for text in day.lines)


def refused_line(**more: object) -> Line:
    """A P2 call that was shed at 10 % free, by marks of 15 and 20 %."""
    told: dict[str, object] = {
        "at": 1e9,
        "id": "x",
        "verdict": "shed",
        "reason": "kv_watermark",
        "pool": "qwen",
        "api": "chat",
        "tenant": "a",
        "service_class": "P2",
        "threshold": 0.15,
        "value": 0.1,
        "prompt": 100,
        "rules": {"rank": 2, "close": 0.15, "open": 0.2, "concurrency": 0.8},
        "met": {
            "endpoints": 1,
            "max_concurrency": 10,
            "free": 0.1,
            "observed": 0.1,
            "unmet": 0.15,
        },
        "found": {
            "reason": "kv_watermark",
            "threshold": 0.15,
            "value": 0.1,
            "after": 0.1,
            "free": 0.1,
            "observed": 0.1,
        },
    }
    return decode(json.dumps(told | more).encode())


@pytest.mark.parametrize(
    ("close", "open_", "expected"),
    [
        (0.15, 0.20, ("shed", "kv_watermark", 0.15)),
        (0.10, 0.15, ("admit", "admitted", None)),
        (0.11, 0.12, ("shed", "kv_watermark", 0.11)),
    ],
)
def test_another_mark_would_have_decided_otherwise(
    close: float, open_: float, expected: tuple[str, str, float | None]
) -> None:
    past = past_of(refused_line())
    rules = replace(past.call.classification.service_class, close=close, open=open_)

    standing = Marks([replace(rules, rank=0)]).standing(past, 0.0)
    verdict = replay(past, rules, standing)

    assert (verdict.action.value, verdict.reason.value, verdict.threshold) == expected


def test_a_line_whose_numbers_were_changed_replays_to_another_verdict() -> None:
    """So a replay does find the verdict, and does not repeat it."""
    honest = refused_line()
    assert told(replay(past_of(honest))) == told(past_of(honest).verdict)

    opened = refused_line(met={"endpoints": 1, "max_concurrency": 10, "free": 0.2}, found=None)
    assert replay(past_of(opened)).action is Action.ADMIT
    full = refused_line(met={"endpoints": 1, "in_flight": 8, "max_concurrency": 10, "free": 0.5})
    assert replay(past_of(full)).reason is Reason.CONCURRENCY
    gone = refused_line(met={"endpoints": 0})
    assert replay(past_of(gone)).reason is Reason.NO_ENDPOINT


def test_hysteresis_is_followed_from_call_to_call() -> None:
    rules = [replace(P1, rank=0), replace(P2, rank=1, close=0.05, open=0.3)]
    marks = Marks(rules)
    met = {"endpoints": 1, "max_concurrency": 10, "observed": 0.1}
    seen = []
    for at, free in enumerate([0.2, 0.04, 0.2, 0.31]):
        past = past_of(refused_line(met=met | {"free": free}))
        standing = marks.standing(past, float(at))
        assert standing is not None
        seen.append(standing.unmet)

    assert seen == [None, 0.05, 0.3, None]


def test_where_nothing_is_known_nothing_else_is_supposed() -> None:
    no_place, blind = refused_line(met=None), refused_line(met={"endpoints": 1})
    stranger = refused_line(service_class="P7")

    for line in (no_place, blind, stranger):
        past = past_of(line)
        assert Marks([replace(P2, rank=0)]).standing(past, 0.0) == past.notes.standing


def test_strict_calls_meet_no_mark() -> None:
    met = {"endpoints": 1, "max_concurrency": 10, "free": 0.01}
    past = past_of(refused_line(service_class="P0", rules={"rank": 0, "strict": True}, met=met))

    assert Marks([P0]).standing(past, 0.0) == past.notes.standing


def test_what_was_merged_comes_out_as_it_was() -> None:
    verdict = Verdict(Action.MERGE, Reason.MERGED, Load(None, 1.0, 0, 1))
    record = Decided(
        *("x", "", "qwen", "chat", "acme", "P1", "", 9, 9, verdict, 1e-4),
        run="r",
        run_task="t",
        run_parent="root",
    )
    line = decode(encode(line_of(record, at=0.0)))
    assert (line.run, line.run_task, line.run_parent) == ("r", "t", "root")
    assert replay(past_of(line)) == verdict
