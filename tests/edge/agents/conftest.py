"""What the tests of agents share: a gatekeeper with a desk for them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from extproc.core.agents.rules import AgentGate, Agents, Policy
from extproc.core.capacity import Pool, PoolLimits
from extproc.core.classes import Catalog, ServiceClass, Task, Tenant
from extproc.core.controller import Controller, Line, RequestLimits
from extproc.core.outcomes import Outcome
from extproc.core.queue import Queue, QueueLimits
from extproc.core.reasons import ReplyRules
from extproc.core.records import Decided, Ended, WaitEnd
from extproc.core.tickets import Tickets
from extproc.edge.admission import Admission
from extproc.edge.agent_identity import SOURCES
from extproc.edge.agents import AgentDesk
from extproc.edge.endings import Endings
from extproc.edge.exchange import Judgement, Request, Resolution
from extproc.edge.identity import FromHeader
from extproc.edge.responder import Routing
from extproc.edge.terms import Terms
from extproc.edge.wording import Wording

P1 = ServiceClass("P1", 0, max_wait=3.0)
P2 = ServiceClass("P2", 1)
CHAT: dict[str, Any] = {"model": "qwen", "messages": [{"role": "user", "content": "hi"}]}


class AgentHouse:
    """A gatekeeper with a desk for agents, at a clock that a test sets; ``room`` calls fit."""

    def __init__(self, room: int = 100, merge_wait: float = 0.0, **policy: Any) -> None:
        self.now = 100.0
        self.merge_wait = merge_wait
        self.rung = 0
        self.records: list[Decided] = []
        self.ready: list[Resolution] = []
        self.chat = CHAT
        self.agents = Agents(Policy(**policy))
        self.desk = AgentDesk(
            self.agents,
            tuple(SOURCES.values()),
            default_tenant="anonymous",
            merge_wait=self.merge_wait,
            clock=lambda: self.now,
            bell=self.ring,
        )
        self.pool = pool = Pool(
            "qwen", PoolLimits(room, stale_after=1.0, unknown_after=30.0), (P1, P2)
        )
        pool.join("e")
        self.queue = Queue(QueueLimits(100, 1 << 20), (P1, P2))
        line = Line(self.queue, Tickets(b"a key for the tests", window=60.0), 0.0)
        gates = (RequestLimits(max_body=1 << 16), AgentGate(self.agents))
        numbers = iter(range(1_000_000))
        self.admission = Admission(
            terms=Terms(
                sources=(FromHeader("x-tenant-id", trusted=True),),
                catalog=Catalog(
                    (P1, P2),
                    {"acme": Tenant("acme", P1)},
                    Tenant("anonymous", P2),
                    {"low": Task("low", ceiling=P2)},
                    {},
                    {},
                ),
                routing=Routing({"qwen": "qwen"}, "qwen", frozenset(), name_pool=False),
                reply_rules=ReplyRules(),
                wording=Wording({"en": "later"}, "en", "shed", 15, refusal=False),
            ),
            controller=Controller({"qwen": pool}, gates, {"qwen": line}),
            max_body=1 << 16,
            pass_unreadable=False,
            observer=self,
            endings=Endings(lambda _: None, lambda: self.now),
            new_id=lambda: f"id{next(numbers)}",
            clock=lambda: self.now,
            wall_clock=lambda: 1796075036.0,
            bell=self.ring,
            desk=self.desk,
            longest_wait=75.0,
        )
        self.open_gate = RequestLimits(max_body=1 << 16)

    def ring(self) -> None:
        self.rung += 1

    def decided(self, record: Decided) -> None:
        self.records.append(record)

    def waited(self, pool: str, service_class: str, end: WaitEnd, seconds: float) -> None: ...

    def ended(self, record: Ended) -> None: ...

    def ask(
        self,
        body: object = None,
        tenant: str = "acme",
        path: str = "/v1/chat/completions",
        task_type: str = "",
        **agent: str,
    ) -> Judgement:
        headers = {f"x-agent-{name.replace('_', '-')}": value for name, value in agent.items()}
        request = Request(
            path,
            "r",
            {"x-tenant-id": tenant, "x-task-type": task_type, **headers},
            {},
            json.dumps(CHAT if body is None else body).encode(),
        )
        return self.admission.judge(request, lambda resolution: self.ready.append(resolution))

    def end(self, judgement: Judgement, outcome: Outcome = Outcome.COMPLETED) -> None:
        assert judgement.hold is not None
        self.admission.release(judgement.hold)
        ident, _ = judgement.hold
        self.desk.ended(Ended(ident, "acme", "P1", "qwen", outcome, 10, 20, 1.0))

    def pump(self) -> list[Judgement]:
        self.admission.pump()
        ready, self.ready = self.ready, []
        return [each() for each in ready]


@pytest.fixture
def agent_house() -> type[AgentHouse]:
    return AgentHouse
