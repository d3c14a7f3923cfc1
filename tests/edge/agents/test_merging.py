"""The gatekeeper where identical calls of one run come at the same time."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from extproc.core.outcomes import Outcome
from extproc.edge import sharing
from extproc.edge.exchange import Editor, Exchange, Judgement, State, Unedited
from extproc.edge.messages import Answer, Event, Extend, Forward, Phase

JSON = {":status": "200", "content-type": "application/json"}
SSE = {":status": "200", "content-type": "text/event-stream"}

AgentHouse = Any
"""The gatekeeper with a desk of `conftest`."""


@pytest.fixture
def house(agent_house: Callable[..., AgentHouse]) -> AgentHouse:
    return agent_house(merge_wait=60.0)


def ident(judgement: Judgement) -> str:
    assert judgement.hold is not None
    return judgement.hold[0]


def headers(
    house: AgentHouse, judgement: Judgement, said: dict[str, str]
) -> Editor | Answer | None:
    event = Event(Phase.RESPONSE_HEADERS, headers=said)
    reaction: Editor | Answer | None = house.admission.answered(judgement.hold, event)
    return reaction


def answer(house: AgentHouse, judgement: Judgement, body: bytes = b"{}") -> None:
    """Let the engine answer a leader that is followed."""
    editor = headers(house, judgement, JSON)
    assert editor is not None
    assert not isinstance(editor, Answer)
    assert editor.feed(body, end=True).data == body


def follows(judgement: Judgement) -> bool:
    return isinstance(judgement.reply, Extend)


def merged(judgement: Judgement) -> bytes:
    reply = judgement.reply
    assert isinstance(reply, Answer)
    assert dict(reply.headers) == {
        "content-type": "application/json",
        "x-tidegate-verdict": "merge",
        "x-tidegate-reason": "merged",
        "x-tidegate-class": "P1",
    }
    assert judgement.hold is None
    return reply.body


def test_followers_get_the_leaders_answer_and_cost_nothing(house: AgentHouse) -> None:
    leader = house.ask(run_id="r")
    followers = [house.ask(run_id="r") for _ in range(3)]
    assert isinstance(leader.reply, Forward)
    assert [each.reply for each in followers] == [Extend(75.0)] * 3
    assert house.agents.following == 3
    assert house.pool.in_flight == 1
    answer(house, leader, b'{"id": "chatcmpl-1"}')
    assert [merged(each) for each in house.pump()] == [b'{"id": "chatcmpl-1"}'] * 3
    assert [record.verdict.reason for record in house.records] == ["admitted"] + ["merged"] * 3
    house.end(leader)
    assert house.agents.merged_calls == 3
    assert house.agents.tokens_saved == 90
    assert house.desk._shelf.size == house.agents.following == 0
    assert not house.agents._live
    [run] = house.agents.runs
    assert (run.calls, run.tokens) == (1, 30)
    house.now += 60.0
    assert house.pump() == []


def test_an_exchange_that_follows_asks_envoy_to_wait(house: AgentHouse) -> None:
    house.ask(run_id="r")
    said = {"x-tenant-id": "acme", "x-agent-run-id": "r"}
    body = json.dumps(house.chat).encode()
    event = Event(Phase.REQUEST_BODY, said, "/v1/chat/completions", "r", {}, body)
    exchange = Exchange(house.admission, house.ready.append)
    assert exchange.receive(event) == Extend(75.0)
    assert exchange.state is State.WAITING
    assert exchange.listens
    exchange.close()
    assert house.agents.following == 0


def test_who_comes_after_the_answer_leads_anew(house: AgentHouse) -> None:
    leader = house.ask(run_id="r")
    assert headers(house, leader, JSON) is None, "nobody follows: it passes without us"
    assert isinstance(house.ask(run_id="r").reply, Forward)
    house.end(leader)


def test_a_stream_may_be_joined_until_its_end(house: AgentHouse) -> None:
    leader = house.ask({"messages": [], "stream": True}, run_id="r")
    editor = headers(house, leader, SSE)
    assert editor is not None
    assert not isinstance(editor, Answer)
    editor.feed(b"data: 1\n\n")
    follower = house.ask({"messages": [], "stream": True}, run_id="r")
    assert follows(follower)
    editor.feed(b"data: [DONE]\n\n", end=True)
    [judgement] = house.pump()
    assert isinstance(judgement.reply, Answer)
    assert judgement.reply.body == b"data: 1\n\ndata: [DONE]\n\n"
    house.end(leader)
    assert house.desk._shelf.size == 0


@pytest.mark.parametrize(
    "change",
    [
        {"run_id": "s"},
        {"tenant": "other"},
        {"body": {"messages": [], "seed": 1}},
        {"merge": "off"},
        {"depends_on": "elsewhere"},
        {"path": "/v1/chat/completions/batch"},
        {"task_type": "low"},
    ],
    ids=str,
)
def test_what_is_not_the_same_is_not_merged(house: AgentHouse, change: dict[str, Any]) -> None:
    first: dict[str, Any] = {"run_id": "r", "body": {"messages": []}}
    house.ask(**first)
    assert not follows(house.ask(**first | change))


def test_calls_of_no_run_are_not_merged(house: AgentHouse) -> None:
    first = house.ask()
    assert isinstance(house.ask().reply, Forward)
    assert headers(house, first, SSE) is None


def test_an_answer_that_breaks_off_is_not_shared(house: AgentHouse) -> None:
    leader, follower = house.ask(run_id="r"), house.ask(run_id="r")
    editor = headers(house, leader, JSON)
    assert editor is not None
    assert not isinstance(editor, Answer)
    editor.feed(b"{")
    house.end(leader)
    [judgement] = house.pump()
    assert isinstance(judgement.reply, Forward)
    assert judgement.hold == follower.hold


def test_merging_may_be_off(agent_house: Callable[..., AgentHouse]) -> None:
    house = agent_house(merge_wait=0.0)
    house.ask(run_id="r")
    assert isinstance(house.ask(run_id="r").reply, Forward)


def test_a_sub_agent_too_many_cannot_follow(house: AgentHouse) -> None:
    house.ask(run_id="r")
    replies = [house.ask(run_id="r", task_id=f"t{n}", parent_id="root") for n in range(4)]
    assert [follows(each) for each in replies] == [True, True, True, False]
    reply = replies[3].reply
    assert isinstance(reply, Answer)
    assert ("x-tidegate-reason", "agent_fanout") in reply.headers
    # A place is free again when a follower leaves.
    house.admission.release(replies[0].hold)
    assert follows(house.ask(run_id="r", task_id="t9", parent_id="root"))


@pytest.mark.parametrize(
    "outcome",
    [Outcome.ENGINE_ERROR, Outcome.CLIENT_GONE, Outcome.TIMEOUT, Outcome.EVICTED],
    ids=str,
)
def test_where_the_leader_comes_to_nothing_the_first_follower_leads(
    house: AgentHouse, outcome: Outcome
) -> None:
    leader = house.ask(run_id="r")
    first, second = house.ask(run_id="r"), house.ask(run_id="r")
    house.end(leader, outcome)
    [judgement] = house.pump()
    assert isinstance(judgement.reply, Forward)
    assert judgement.hold == first.hold
    answer(house, judgement)
    assert [merged(each) for each in house.pump()] == [b"{}"]
    house.end(judgement)
    assert second.hold is not None
    assert not house.agents._live


def test_an_answer_that_we_cut_is_not_shared(house: AgentHouse) -> None:
    class Cut:
        unsent = b""

        def feed(self, chunk: bytes, *, end: bool = False) -> Any:
            return Unedited(b"sorry", True)

    leader, follower = house.ask(run_id="r"), house.ask(run_id="r")
    event = Event(Phase.RESPONSE_HEADERS, headers=SSE)
    editor = house.desk.answered(ident(leader), event, Cut())
    editor.feed(b"data: 1")
    assert house.pump() == []
    house.end(leader, Outcome.ENGINE_ERROR)
    [judgement] = house.pump()
    assert isinstance(judgement.reply, Forward)
    assert judgement.hold == follower.hold


def test_an_answer_that_a_task_ended_early_is_shared_when_its_record_comes(
    house: AgentHouse,
) -> None:
    class Early:
        unsent = b""

        def feed(self, chunk: bytes, *, end: bool = False) -> Any:
            return Unedited(chunk, True)

    leader, follower = house.ask(run_id="r"), house.ask(run_id="r")
    event = Event(Phase.RESPONSE_HEADERS, headers=JSON)
    house.desk.answered(ident(leader), event, Early()).feed(b"{}")
    house.end(leader)
    assert [merged(each) for each in house.pump()] == [b"{}"]
    assert follower.hold is not None


@pytest.mark.parametrize("said", [{":status": "500"}, {":status": "503"}], ids=str)
def test_an_engines_error_is_not_shared(house: AgentHouse, said: dict[str, str]) -> None:
    leader, follower = house.ask(run_id="r"), house.ask(run_id="r")
    assert headers(house, leader, said) is None
    [judgement] = house.pump()
    assert judgement.hold == follower.hold
    house.end(leader, Outcome.ENGINE_ERROR)
    assert house.pump() == []


def test_what_replaces_an_answer_is_not_shared(house: AgentHouse) -> None:
    leader, follower = house.ask(run_id="r"), house.ask(run_id="r")
    fallback = Answer(200, (), b"{}")
    event = Event(Phase.RESPONSE_HEADERS, headers=JSON)
    assert house.desk.answered(ident(leader), event, fallback) is fallback
    [judgement] = house.pump()
    assert judgement.hold == follower.hold


def test_what_is_too_long_to_keep_is_asked_for_by_each(
    house: AgentHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharing, "LONGEST_ANSWER", 3)
    leader = house.ask(run_id="r")
    followers = [house.ask(run_id="r") for _ in range(2)]
    answer(house, leader, b"[1, 2]")
    judgements = house.pump()
    assert [each.hold for each in judgements] == [each.hold for each in followers]
    assert all(isinstance(each.reply, Forward) for each in judgements)
    house.end(leader)
    assert house.pump() == []


def test_nobody_follows_for_ever(house: AgentHouse) -> None:
    leader, follower = house.ask(run_id="r"), house.ask(run_id="r")
    assert house.admission.pump() == house.now + 60.0
    house.now += 60.0
    [judgement] = house.pump()
    assert isinstance(judgement.reply, Forward)
    assert judgement.hold == follower.hold
    answer_to_nobody = headers(house, leader, JSON)
    assert answer_to_nobody is None
    house.now += 60.0
    assert house.pump() == []


def test_a_follower_may_leave(house: AgentHouse) -> None:
    leader, follower = house.ask(run_id="r"), house.ask(run_id="r")
    house.admission.release(follower.hold)
    assert house.agents.following == 0
    assert headers(house, leader, JSON) is None
    house.end(leader)
    assert house.pump() == []
    assert not house.agents._live


def test_followers_of_a_leader_that_is_shed_are_judged_themselves(
    agent_house: Callable[..., AgentHouse],
) -> None:
    house = agent_house(room=1, merge_wait=60.0)
    other = house.ask()
    leader = house.ask(run_id="r")
    assert leader.reply is None, "it waits for capacity"
    follower = house.ask(run_id="r")
    assert follows(follower)
    assert len(house.queue) == 1
    house.now += 3.0
    [shed] = house.pump()
    assert isinstance(shed.reply, Answer)
    assert house.pump() == []
    assert len(house.queue) == 1, "the follower waits in its stead"
    house.end(other)
    [judgement] = house.pump()
    assert judgement.hold == follower.hold


def test_who_follows_a_call_that_waits_for_a_task_waits_for_it_in_its_stead(
    house: AgentHouse,
) -> None:
    first = house.ask({"messages": [1]}, run_id="r", task_id="first")
    leader = house.ask(run_id="r", depends_on="first")
    follower = house.ask(run_id="r", depends_on="first")
    assert leader.reply is None
    assert follows(follower)
    house.admission.release(leader.hold)
    assert house.pump() == []
    house.end(first)
    [judgement] = house.pump()
    assert isinstance(judgement.reply, Forward)
    assert judgement.hold == follower.hold


def test_shadow_mode_merges_nothing(house: AgentHouse) -> None:
    house.ask(run_id="r")
    follower = house.ask(run_id="r")
    assert follows(follower)
    house.admission.switch(house.open_gate, shadow=True)
    [judgement] = [each() for each in house.ready]
    assert isinstance(judgement.reply, Forward)
    assert isinstance(house.ask(run_id="r").reply, Forward)
    assert house.records[-1].verdict.action == "admit"


def test_bodies_that_differ_only_in_who_asks_are_the_same(house: AgentHouse) -> None:
    body = {"messages": [], "metadata": {"agent_run_id": "r", "agent_task_id": "a"}}
    house.ask(body)
    assert follows(house.ask(json.loads(json.dumps(body).replace('"a"', '"b"'))))
