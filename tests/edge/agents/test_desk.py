"""The gatekeeper where calls belong to agent runs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from extproc.core.agents.limits import RunLimits
from extproc.core.outcomes import Outcome
from extproc.edge.exchange import Judgement, Request
from extproc.edge.messages import Answer, Forward

CHAT: dict[str, Any] = {"model": "qwen", "messages": [{"role": "user", "content": "hi"}]}
AgentHouse = Any
"""The fixture of `conftest` that makes a gatekeeper."""


def refused(judgement: Judgement) -> tuple[str, dict[str, str], Any]:
    reply = judgement.reply
    assert isinstance(reply, Answer)
    headers = dict(reply.headers)
    assert reply.status == 429
    return headers["x-tidegate-reason"], headers, json.loads(reply.body)["error"]


def test_an_orchestrator_is_told_what_to_do_and_its_client_not_to_try_again(
    agent_house: AgentHouse,
) -> None:
    house = agent_house(limits=RunLimits(repeats=2))
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


def test_sub_agents_are_counted_by_run_and_tenant(agent_house: AgentHouse) -> None:
    house = agent_house(limits=RunLimits(sub_agents=1, repeats=None))
    assert isinstance(house.ask(run_id="r", task_id="a", parent_id="root").reply, Forward)
    assert refused(house.ask(run_id="r", task_id="b", parent_id="root"))[0] == "agent_fanout"
    for other in ({"run_id": "s"}, {"run_id": "r", "tenant": "other"}):
        assert isinstance(house.ask(task_id="b", parent_id="root", **other).reply, Forward)


def test_bodies_that_cannot_be_read_belong_to_no_run(agent_house: AgentHouse) -> None:
    house = agent_house()
    odd: tuple[Any, ...] = ([], {"model": "qwen", "messages": [], "n": []})
    for body in odd:
        assert isinstance(house.ask(body, run_id="r").reply, Answer)
    large = house.ask({**CHAT, "user": "x" * (1 << 16)}, run_id="r").reply
    assert isinstance(large, Answer)
    assert large.status == 413
    assert len(house.agents.runs) == 0
    assert not house.agents._live


def test_a_successor_waits_for_its_predecessor_and_is_then_judged(agent_house: AgentHouse) -> None:
    house = agent_house()
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


def test_a_successor_whose_predecessor_fails_is_refused(agent_house: AgentHouse) -> None:
    house = agent_house()
    first = house.ask(run_id="r", task_id="first")
    house.ask(run_id="r", task_id="second", depends_on="first")
    house.end(first, Outcome.ENGINE_ERROR)
    [judgement] = house.pump()
    assert refused(judgement)[0] == "dependency_unmet"
    assert not house.agents._live


def test_a_successor_may_have_to_wait_for_capacity_after_that(agent_house: AgentHouse) -> None:
    house = agent_house(room=2)
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


def test_who_leaves_while_waiting_leaves_nothing(agent_house: AgentHouse) -> None:
    house = agent_house()
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


def test_who_leaves_the_queue_uses_nothing_up(agent_house: AgentHouse) -> None:
    house = agent_house(room=1, limits=RunLimits(repeats=1))
    first = house.ask()
    for _ in range(3):
        waiting = house.ask(run_id="r")
        assert waiting.reply is None
        assert waiting.hold is not None
        house.admission.release(waiting.hold)
    house.end(first)
    house.end(house.ask(run_id="r"))
    assert refused(house.ask(run_id="r"))[0] == "agent_loop"


def test_sub_calls_take_the_class_of_the_root_and_no_higher_one(agent_house: AgentHouse) -> None:
    house = agent_house()
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


def test_a_run_that_was_let_in_goes_before_a_new_one(agent_house: AgentHouse) -> None:
    house = agent_house(room=1, limits=RunLimits(repeats=None))
    first = house.ask(run_id="r")
    house.now += 1.0
    new = house.ask(run_id="new", tenant="acme")
    old = house.ask(run_id="r", tenant="acme")
    assert new.reply is old.reply is None
    house.end(first)
    [judgement] = house.pump()
    assert judgement.hold == old.hold


def test_a_fault_of_ours_leaves_nothing(
    agent_house: AgentHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = agent_house()

    def broken(*_: object) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(house.admission._controller, "decide", broken)
    with pytest.raises(RuntimeError):
        house.ask(run_id="r")
    assert not house.agents._live


def test_in_shadow_mode_nobody_waits_and_nobody_is_refused(agent_house: AgentHouse) -> None:
    house = agent_house(limits=RunLimits(repeats=1))
    first = house.ask(run_id="r", task_id="first")
    second = house.ask(run_id="r", task_id="second", depends_on="first", body={**CHAT, "n": 2})
    assert second.reply is None
    house.admission.switch(house.open_gate, shadow=True)
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


def test_decisions_tell_the_tree_of_a_run(agent_house: AgentHouse) -> None:
    house = agent_house()
    house.ask(run_id="r", task_id="a", parent_id="root")
    house.ask()
    assert [(r.run, r.run_task, r.run_parent) for r in house.records] == [
        ("r", "a", "root"),
        ("", "", ""),
    ]


def test_what_a_run_must_not_do_gets_no_ticket(agent_house: AgentHouse) -> None:
    house = agent_house(limits=RunLimits(repeats=1))
    house.end(house.ask(run_id="r"))
    reply = house.ask(run_id="r").reply
    assert isinstance(reply, Answer)
    assert reply.unique_headers == ()
