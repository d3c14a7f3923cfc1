"""Whose run a call says it belongs to."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.agents.runs import Member, Owner
from extproc.edge.agent_identity import DEEPEST, MOST_PREDECESSORS, SOURCES, member_of
from extproc.openai.endpoints import Endpoint
from extproc.openai.requests import Call, read

ACME = Owner("acme")
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def call(metadata: dict[str, Any] | None = None) -> Call:
    body: dict[str, Any] = {"messages": []}
    if metadata is not None:
        body["metadata"] = metadata
    return read(Endpoint.CHAT, json.dumps(body).encode())


def member(metadata: dict[str, Any] | None = None, **headers: str) -> Member:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return member_of(tuple(SOURCES.values()), named, call(metadata), ACME)


WHOLE = Member(ACME, "r1", "t2", "t1", ("a", "b"), 2)


def test_headers_tell_all() -> None:
    assert (
        member(
            x_agent_run_id="r1",
            x_agent_task_id="t2",
            x_agent_parent_id="t1",
            x_agent_depends_on="a, b,,a",
            x_agent_depth="2",
        )
        == WHOLE
    )


def test_metadata_tells_the_same() -> None:
    said = {
        "agent_run_id": "r1",
        "agent_task_id": "t2",
        "agent_parent_id": "t1",
        "agent_depends_on": ["a", "b"],
        "agent_depth": 2,
    }
    assert member(said) == WHOLE
    assert member({**said, "agent_depends_on": "a,b", "agent_depth": "2"}) == WHOLE


def test_baggage_tells_the_same() -> None:
    baggage = "other=1, agent_run_id=r1;p=1, agent-task-id=t2,agent_parent_id=t1,agent_depth=2"
    assert member(baggage=baggage) == Member(ACME, "r1", "t2", "t1", (), 2)
    assert member(baggage="agent_run_id=r%2D1") == Member(ACME, "r-1")


def test_a_trace_is_a_run() -> None:
    assert member(traceparent=TRACE) == Member(ACME, "4bf92f3577b34da6a3ce929d0e0e4736")
    assert member(traceparent=TRACE.replace("4bf92f3577b34da6a3ce929d0e0e4736", "0" * 32)).run == ""
    assert member(traceparent="nonsense").run == ""


def test_the_first_that_names_a_run_tells_the_rest() -> None:
    said = {"agent_run_id": "other", "agent_task_id": "t9"}
    assert member(said, x_agent_run_id="r1", traceparent=TRACE) == Member(ACME, "r1")
    assert member(said, x_agent_task_id="t1", traceparent=TRACE) == Member(ACME, "other", "t9")


def test_only_configured_places_are_asked() -> None:
    sources = (SOURCES["headers"],)
    assert member_of(sources, {"traceparent": TRACE}, call(), ACME) == Member(ACME)


@pytest.mark.parametrize("run", ["", " ", "a,b", "a b", "x" * 129, "ü", "a\x00"])
def test_odd_ids_name_nothing(run: str) -> None:
    assert member(x_agent_run_id=run) == Member(ACME)


@pytest.mark.parametrize(
    ("said", "depth"),
    [("3", 3), ("-1", 0), ("x", 0), ("999999999", DEEPEST), ("9" * 99, 0), ("²", 0)],
)
def test_odd_depths_count_as_none(said: str, depth: int) -> None:
    assert member(x_agent_run_id="r", x_agent_depth=said).depth == depth


def test_predecessors_are_few() -> None:
    many = ",".join(f"t{index}" for index in range(100))
    assert len(member(x_agent_run_id="r", x_agent_depends_on=many).depends_on) == MOST_PREDECESSORS


@given(
    st.dictionaries(
        st.sampled_from(
            [
                *(f"x-agent-{n}" for n in ("run-id", "task-id", "depth", "depends-on")),
                "baggage",
                "traceparent",
            ]
        ),
        st.text(),
    )
)
def test_whatever_callers_send_is_read_or_ignored(headers: dict[str, str]) -> None:
    found = member_of(tuple(SOURCES.values()), headers, call(), ACME)
    assert len(found.run) <= 128
    assert 0 <= found.depth <= DEEPEST
