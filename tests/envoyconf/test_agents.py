"""What the generated filter says where runs of agents are known."""

from __future__ import annotations

from datetime import timedelta

import pytest

from extproc import contract
from extproc.config import Config, parse
from extproc.envoyconf.filters import ext_proc


def config(text: str) -> Config:
    return parse(text)


def test_without_agents_none_of_their_headers_is_sent() -> None:
    made = ext_proc(config(""))
    assert made.max_message_timeout is None
    assert not [each for each in made.request_attributes if "agent" in each or "trace" in each]


@pytest.mark.parametrize(
    ("agents", "headers"),
    [
        ("identity: [baggage], merge_wait: 0", {"baggage"}),
        ("identity: [metadata]", {"x-agent-merge"}),
        ("identity: [traceparent]", {"traceparent", "x-agent-merge"}),
        (
            "identity: [headers]",
            {
                *("x-agent-run-id", "x-agent-task-id", "x-agent-parent-id"),
                *("x-agent-depends-on", "x-agent-depth", "x-agent-merge"),
            },
        ),
    ],
)
def test_exactly_the_headers_that_are_read_are_sent(agents: str, headers: set[str]) -> None:
    plain = set(contract.request_headers(config("")))
    assert set(contract.request_headers(config(f"agents: {{{agents}}}\n"))) - plain == headers


def test_envoy_may_be_kept_waiting_where_calls_follow_others() -> None:
    text = "agents: {merge_wait: 100s}\nenvoy: {message_timeout: 20s}\n"
    assert ext_proc(config(text)).max_message_timeout == timedelta(seconds=120)
    assert ext_proc(config("agents: {merge_wait: 0}\n")).max_message_timeout is None
