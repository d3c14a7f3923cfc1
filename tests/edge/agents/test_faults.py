"""Faults of our own code inside the gatekeeper: one call is answered as declared, all others go on."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from extproc.core.faults import Place
from extproc.edge.messages import Answer, Forward

AgentHouse = Any
"""The gatekeeper with a desk of `conftest`."""
Break = Callable[[object, str], None]


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Break:
    """Break a method once."""

    def make(owner: object, name: str) -> None:
        def fail(*_: object, **__: object) -> Any:
            monkeypatch.undo()
            raise RuntimeError("a fault of ours")

        monkeypatch.setattr(owner, name, fail)

    return make


def test_the_gatekeeper_declares_what_becomes_of_a_request(agent_house: AgentHouse) -> None:
    reply = agent_house().admission.failed(Place.JUDGE, RuntimeError(), "/v1/chat/completions")

    assert isinstance(reply, Answer)
    assert reply.status == 500


def test_a_call_that_failed_at_the_desk_belongs_to_no_run(
    agent_house: AgentHouse, broken: Break
) -> None:
    house = agent_house()
    broken(house.desk, "_mergeable")

    with pytest.raises(RuntimeError):
        house.ask(run_id="r")

    assert not house.agents._live
    assert isinstance(house.ask(run_id="r").reply, Forward)


def test_a_successor_that_cannot_be_judged_is_told_so_where_it_waits(
    agent_house: AgentHouse, broken: Break
) -> None:
    house = agent_house()
    first = house.ask(run_id="r", task_id="first")
    for name in ("second", "third"):
        house.ask(run_id="r", task_id=name, depends_on="first")
    house.end(first)
    broken(house.admission._controller, "decide")

    house.admission.pump()

    second, third = house.ready
    with pytest.raises(RuntimeError, match="a fault of ours"):
        second()
    assert isinstance(third().reply, Forward)


def test_a_fault_at_a_calls_turn_is_told_where_it_waits(
    agent_house: AgentHouse, broken: Break
) -> None:
    house = agent_house(room=1)
    first, second = house.ask(), house.ask()
    assert second.reply is None
    broken(house, "waited")
    house.admission.release(first.hold)

    house.admission.pump()

    (resolution,) = house.ready
    with pytest.raises(RuntimeError, match="a fault of ours"):
        resolution()
    assert house.pool.in_flight == 1, "until its exchange has answered"
    house.admission.release(second.hold)
    assert house.pool.in_flight == 0


def test_a_turn_that_failed_is_taken_again_soon(
    agent_house: AgentHouse, broken: Break, caplog: pytest.LogCaptureFixture
) -> None:
    house = agent_house(room=1)
    first = house.ask()
    house.ask()
    house.admission.release(first.hold)
    broken(house.admission._controller, "pump")

    with caplog.at_level(logging.ERROR):
        assert house.admission.pump() == house.now + 0.05
    (judgement,) = house.pump()

    assert isinstance(judgement.reply, Forward)
    assert [record.message for record in caplog.records] == ["a fault of our own"]


def test_a_fault_after_a_scrape_does_not_stop_the_scraping(
    agent_house: AgentHouse, broken: Break, caplog: pytest.LogCaptureFixture
) -> None:
    house = agent_house()
    broken(house.admission._in_flight, "evict")

    house.admission.scraped("qwen")

    assert [vars(record)["place"] for record in caplog.records] == ["pump"]
