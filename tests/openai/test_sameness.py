"""Which bodies ask for the same."""

from __future__ import annotations

import json
from typing import Any

import pytest

from extproc.openai.endpoints import Endpoint
from extproc.openai.requests import read
from extproc.openai.sameness import LARGEST, LARGEST_TREE, fingerprint

CHAT: dict[str, Any] = {
    "model": "qwen",
    "messages": [{"role": "user", "content": "hi"}],
    "temperature": 0.5,
}


def of(body: dict[str, Any] | bytes, endpoint: Endpoint = Endpoint.CHAT) -> bytes | None:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return fingerprint(read(endpoint, raw))


def test_spacing_and_the_order_of_members_do_not_matter() -> None:
    turned = json.dumps(dict(reversed(CHAT.items())), indent=2).encode()
    assert of(turned) == of(CHAT)
    assert of(json.dumps(CHAT).replace("hi", "\\u0068i").encode()) == of(CHAT)


def test_who_asks_does_not_matter() -> None:
    assert of({**CHAT, "user": "u1", "metadata": {"agent_task_id": "t1"}}) == of(CHAT)


@pytest.mark.parametrize(
    "change",
    [
        {"temperature": 0.6},
        {"seed": 1},
        {"stream": True},
        {"n": 2},
        {"max_tokens": 5},
        {"model": "other"},
        {"messages": [{"role": "user", "content": "ho"}]},
        {"vendor_extension": True},
    ],
    ids=str,
)
def test_whatever_bears_on_the_answer_matters(change: dict[str, Any]) -> None:
    assert of({**CHAT, **change}) != of(CHAT)


def test_the_endpoint_matters() -> None:
    body = {"model": "qwen", "prompt": "hi", "messages": []}
    assert of(body, Endpoint.COMPLETIONS) != of(body, Endpoint.CHAT)


def test_bodies_that_only_the_engine_can_read_are_compared_too() -> None:
    odd = b'{"model": "qwen", "messages": [], "temperature": NaN}'
    assert of(odd) == of(odd) is not None
    assert of(odd) != of(odd.replace(b"NaN", b"-Infinity"))


def test_long_bodies_are_compared_by_their_bytes_and_the_longest_not_at_all() -> None:
    long = {**CHAT, "messages": [{"role": "user", "content": "x" * LARGEST_TREE}]}
    assert of(long) == of(long) is not None
    assert of(dict(reversed(long.items()))) != of(long)
    assert of({**CHAT, "messages": [{"role": "user", "content": "x" * LARGEST}]}) is None
