"""An admission with all that a waiting call needs, on a clock of its own."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from extproc.core.capacity import Pool, PoolLimits
from extproc.core.classes import Catalog, ServiceClass, Tenant
from extproc.core.controller import (
    Candidate,
    Controller,
    Line,
    RequestLimits,
)
from extproc.core.queue import Queue, QueueLimits
from extproc.core.reasons import ReplyRules
from extproc.core.records import Decided, Ended, WaitEnd
from extproc.core.tickets import Tickets
from extproc.edge.admission import Admission
from extproc.edge.endings import Endings
from extproc.edge.exchange import Judgement, Request, Resolution
from extproc.edge.identity import FromHeader
from extproc.edge.messages import Answer
from extproc.edge.responder import Routing
from extproc.edge.terms import Terms
from extproc.edge.ticket_desk import Claims
from extproc.edge.wording import Wording

P1 = ServiceClass("P1", 0, max_wait=3.0, max_output=100)
P2 = ServiceClass("P2", 1)
WALL = 1_796_000_000.0


def body(text: str = "hi", **more: Any) -> bytes:
    chat = {"model": "qwen", "messages": [{"role": "user", "content": text}], **more}
    return json.dumps(chat).encode()


@dataclass
class House:
    """A gatekeeper whose time and room a test decides; ``room`` calls fit."""

    room: int = 1
    max_calls: int = 100
    reserve: float = 0.0
    now: float = 100.0
    wall: float = WALL
    rung: int = 0
    claims: Claims | None = None
    records: list[Decided] = field(default_factory=list)
    waits: list[tuple[str, WaitEnd, float]] = field(default_factory=list)
    ready: dict[str, Resolution] = field(default_factory=dict)
    told: list[Ended] = field(default_factory=list)

    def __post_init__(self) -> None:
        classes = (P1, P2)
        self.pool = Pool(
            "qwen", PoolLimits(self.room, stale_after=1.0, unknown_after=30.0), classes
        )
        self.pool.join("e")
        self.queue = Queue(QueueLimits(self.max_calls, 1 << 20), classes)
        self.tickets = Tickets(b"a key for the tests", window=60.0)
        line = Line(self.queue, self.tickets, self.reserve)
        self.controller = Controller({"qwen": self.pool}, (RequestLimits(1 << 20),), {"qwen": line})
        self.endings = Endings(self.told.append, lambda: self.now)
        ids = iter(range(1, 1000))
        self.admission = Admission(
            terms=Terms(
                sources=(FromHeader("x-tenant-id", trusted=True),),
                catalog=Catalog(
                    classes=classes,
                    tenants={name: Tenant(name, P1) for name in ("a", "b")},
                    default_tenant=Tenant("anonymous", P2),
                    tasks={},
                    task_by_path={},
                    task_by_model={},
                ),
                routing=Routing({"qwen": "qwen"}, "qwen", frozenset(), name_pool=False),
                reply_rules=ReplyRules(),
                wording=Wording({"en": "later"}, "en", "load_shedding_fallback", 15, refusal=False),
            ),
            controller=self.controller,
            max_body=1 << 20,
            pass_unreadable=True,
            observer=self,
            endings=self.endings,
            new_id=lambda: f"x{next(ids)}",
            clock=lambda: self.now,
            wall_clock=lambda: self.wall,
            bell=self.ring,
            claims=self.claims,
        )

    def ring(self) -> None:
        self.rung += 1

    def open_gate(self, call: Candidate, pool: Pool, now: float) -> None:
        """Let every call pass."""

    def decided(self, record: Decided) -> None:
        self.records.append(record)

    def waited(self, pool: str, service_class: str, end: WaitEnd, seconds: float) -> None:
        assert (pool, service_class) == ("qwen", "P1")
        self.waits.append((service_class, end, seconds))

    def ended(self, record: Ended) -> None:
        raise AssertionError(record)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.wall += seconds

    def ask(self, raw: bytes | None = None, tenant: str = "a", **headers: str) -> Judgement:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        request = Request(
            "/v1/chat/completions",
            "r1",
            {"x-tenant-id": tenant, **named},
            {},
            body() if raw is None else raw,
        )
        judgement = self.admission.judge(request, lambda resolution: self._put(resolution))
        self.asked = judgement.hold[0] if judgement.hold else ""
        return judgement

    def _put(self, resolution: Resolution) -> None:
        self.ready[f"{len(self.ready)}"] = resolution

    def pump(self) -> list[Judgement]:
        self.ready.clear()
        self.admission.pump()
        return [each() for each in self.ready.values()]


def answered(judgement: Judgement) -> tuple[dict[str, str], Any]:
    reply = judgement.reply
    assert isinstance(reply, Answer)
    return dict((*reply.headers, *reply.unique_headers)), json.loads(reply.body)
