"""The gatekeeper where calls belong to agent runs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from extproc.core.agents.rules import AgentGate, Agents, Policy, RunLimits
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
from extproc.edge.messages import Answer, Forward
from extproc.edge.responder import Routing
from extproc.edge.wording import Wording

P1 = ServiceClass("P1", 0, max_wait=3.0)
P2 = ServiceClass("P2", 1)
CHAT: dict[str, Any] = {"model": "qwen", "messages": [{"role": "user", "content": "hi"}]}


class House:
    """A gatekeeper with a desk for agents, at a clock that a test sets; ``room`` calls fit."""

    def __init__(self, room: int = 100, **policy: Any) -> None:
        self.now = 100.0
        self.rung = 0
        self.records: list[Decided] = []
        self.ready: list[Resolution] = []
        self.agents = Agents(Policy(**policy))
        self.desk = AgentDesk(
            self.agents,
            tuple(SOURCES.values()),
            default_tenant="anonymous",
            clock=lambda: self.now,
            bell=self.ring,
        )
        pool = Pool("qwen", PoolLimits(room, stale_after=1.0, unknown_after=30.0), (P1, P2))
        pool.join("e")
        self.queue = Queue(QueueLimits(100, 1 << 20), (P1, P2))
        line = Line(self.queue, Tickets(b"a key for the tests", window=60.0), 0.0)
        gates = (RequestLimits(max_body=1 << 16), AgentGate(self.agents))
        numbers = iter(range(1_000_000))
        self.admission = Admission(
            catalog=Catalog(
                (P1, P2),
                {"acme": Tenant("acme", P1)},
                Tenant("anonymous", P2),
                {"low": Task("low", ceiling=P2)},
                {},
                {},
            ),
            controller=Controller({"qwen": pool}, gates, {"qwen": line}),
            routing=Routing({"qwen": "qwen"}, "qwen", frozenset(), name_pool=False),
            sources=(FromHeader("x-tenant-id", trusted=True),),
            reply_rules=ReplyRules(),
            wording=Wording({"en": "later"}, "en", "shed", 15, refusal=False),
            max_body=1 << 16,
            pass_unreadable=False,
            observer=self,
            endings=Endings(lambda _: None, lambda: self.now),
            new_id=lambda: f"id{next(numbers)}",
            clock=lambda: self.now,
            wall_clock=lambda: 1796075036.0,
            bell=self.ring,
            desk=self.desk,
        )

    def ring(self) -> None:
        self.rung += 1

    def decided(self, record: Decided) -> None:
        self.records.append(record)

    def waited(self, pool: str, service_class: str, end: WaitEnd, seconds: float) -> None: ...

    def ended(self, record: Ended) -> None: ...

    def ask(self, body: object = None, tenant: str = "acme", **agent: str) -> Judgement:
        headers = {f"x-agent-{name.replace('_', '-')}": value for name, value in agent.items()}
        request = Request(
            "/v1/chat/completions",
            "r",
            {"x-tenant-id": tenant, **headers},
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


def refused(judgement: Judgement) -> tuple[str, dict[str, str], Any]:
    reply = judgement.reply
    assert isinstance(reply, Answer)
    headers = dict(reply.headers)
    assert reply.status == 429
    return headers["x-tidegate-reason"], headers, json.loads(reply.body)["error"]


def test_an_orchestrator_is_told_what_to_do_and_its_client_not_to_try_again() -> None:
    house = House(limits=RunLimits(repeats=2))
    for _ in range(2):
        house.end(house.ask(run_id="r"))
    reason, headers, error = refused(house.ask(run_id="r"))
    assert reason == "agent_loop"
    assert headers["x-should-retry"] == "false"
    assert "retry-after" not in headers
    assert error == {
        "message": "The same call was made too often in this run. Its answer will not change: use "
        "the one that was given, or change the request. (3, limit 2)",
        "type": "agent_loop",
        "param": None,
        "code": "agent_loop",
    }


def test_sub_agents_are_counted_by_run_and_tenant() -> None:
    house = House(limits=RunLimits(sub_agents=1, repeats=None))
    assert isinstance(house.ask(run_id="r", task_id="a", parent_id="root").reply, Forward)
    assert refused(house.ask(run_id="r", task_id="b", parent_id="root"))[0] == "agent_fanout"
    for other in ({"run_id": "s"}, {"run_id": "r", "tenant": "other"}):
        assert isinstance(house.ask(task_id="b", parent_id="root", **other).reply, Forward)


def test_bodies_that_cannot_be_read_belong_to_no_run() -> None:
    house = House()
    odd: tuple[Any, ...] = ([], {"model": "qwen", "messages": [], "n": []})
    for body in odd:
        assert isinstance(house.ask(body, run_id="r").reply, Answer)
    assert len(house.agents.runs) == 0
    assert not house.agents._live


def test_a_successor_waits_for_its_predecessor_and_is_then_judged() -> None:
    house = House()
    first = house.ask(run_id="r", task_id="first")
    second = house.ask(run_id="r", task_id="second", depends_on="first")
    assert second.reply is None
    assert house.pump() == []
    assert house.admission.pump() == 104.0
    house.end(first)
    rung = house.rung
    assert rung > 0
    [judgement] = house.pump()
    assert isinstance(judgement.reply, Forward)
    assert [record.id for record in house.records] == ["id0", "id1"]
    house.end(judgement)
    assert not house.agents._live


def test_a_successor_whose_predecessor_fails_is_refused() -> None:
    house = House()
    first = house.ask(run_id="r", task_id="first")
    house.ask(run_id="r", task_id="second", depends_on="first")
    house.end(first, Outcome.ENGINE_ERROR)
    [judgement] = house.pump()
    assert refused(judgement)[0] == "dependency_unmet"
    assert not house.agents._live


def test_a_successor_may_have_to_wait_for_capacity_after_that() -> None:
    house = House(room=2)
    other = house.ask(tenant="acme")
    first = house.ask(run_id="r", task_id="first")
    second = house.ask(run_id="r", task_id="second", depends_on="first")
    third = house.ask()
    assert third.reply is None
    house.end(first)
    assert len(house.pump()) == 1
    assert len(house.queue) == 1
    house.end(other)
    assert len(house.pump()) == 1
    assert second.hold is not None


def test_who_leaves_while_waiting_leaves_nothing() -> None:
    house = House()
    house.ask(run_id="r", task_id="first")
    second = house.ask(run_id="r", task_id="second", depends_on="first")
    third = house.ask(run_id="r", task_id="third", depends_on="second")
    assert second.hold is not None
    house.admission.release(second.hold)
    [judgement] = house.pump()
    assert refused(judgement)[0] == "dependency_unmet"
    assert third.hold is not None
    house.admission.release(third.hold)
    assert [live.member.task for live in house.agents._live.values()] == ["first"]


def test_who_leaves_the_queue_uses_nothing_up() -> None:
    house = House(room=1, limits=RunLimits(repeats=1))
    first = house.ask()
    for _ in range(3):
        waiting = house.ask(run_id="r")
        assert waiting.reply is None
        assert waiting.hold is not None
        house.admission.release(waiting.hold)
    house.end(first)
    house.end(house.ask(run_id="r"))
    assert refused(house.ask(run_id="r"))[0] == "agent_loop"


def test_sub_calls_take_the_class_of_the_root_and_no_higher_one() -> None:
    house = House()
    headers = {"x-tenant-id": "acme", "x-task-type": "low", "x-agent-run-id": "r"}
    chat = json.dumps({"model": "qwen", "messages": []}).encode()
    request = Request("/v1/chat/completions", "r", headers, {}, chat)
    house.admission.judge(request, house.ready.append)
    house.ask(run_id="r", task_id="a", parent_id="root")
    assert [record.service_class for record in house.records] == ["P2", "P2"]
    # The other way round, the task does not lower it; and nobody's class is above its tenant's.
    house.ask(run_id="s")
    headers = {**headers, "x-agent-run-id": "s", "x-agent-parent-id": "root"}
    house.admission.judge(Request("/v1/chat/completions", "r", headers, {}, chat), lambda _: None)
    house.ask(run_id="t", tenant="anonymous")
    assert [record.service_class for record in house.records[2:]] == ["P1", "P1", "P2"]


def test_a_run_that_was_let_in_goes_before_a_new_one() -> None:
    house = House(room=1, limits=RunLimits(repeats=None))
    first = house.ask(run_id="r")
    house.now += 1.0
    new = house.ask(run_id="new", tenant="acme")
    old = house.ask(run_id="r", tenant="acme")
    assert new.reply is old.reply is None
    house.end(first)
    [judgement] = house.pump()
    assert judgement.hold == old.hold


def test_a_fault_of_ours_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    house = House()

    def broken(*_: object) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(house.admission._controller, "decide", broken)
    with pytest.raises(RuntimeError):
        house.ask(run_id="r")
    assert not house.agents._live


def test_in_shadow_mode_nobody_waits_and_nobody_is_refused() -> None:
    house = House(limits=RunLimits(repeats=1))
    first = house.ask(run_id="r", task_id="first")
    second = house.ask(run_id="r", task_id="second", depends_on="first", body={**CHAT, "n": 2})
    assert second.reply is None
    house.admission.switch(RequestLimits(1 << 16), shadow=True)
    [judgement] = [each() for each in house.ready]
    assert isinstance(judgement.reply, Forward)
    third = house.ask(run_id="r", task_id="third", depends_on="first")
    assert isinstance(third.reply, Forward)
    fourth = house.ask(run_id="r")
    assert isinstance(fourth.reply, Forward)
    assert [(r.verdict.action, r.verdict.reason) for r in house.records[1:]] == [
        ("wait", "waiting"),
        ("wait", "waiting"),
        ("reject", "agent_loop"),
    ]
    for each in (first, judgement, third, fourth):
        house.end(each)
    assert not house.agents._live
