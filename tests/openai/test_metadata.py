"""What a body's metadata says."""

from __future__ import annotations

import json

import pytest

from extproc.openai.endpoints import Endpoint
from extproc.openai.metadata import LONGEST, metadata
from extproc.openai.requests import read


@pytest.mark.parametrize(
    ("said", "found"),
    [
        (
            {"agent_run_id": "r", "n": 3, "b": True, "o": {}, "f": 1.5},
            {"agent_run_id": "r", "n": "3"},
        ),
        ({"agent_depends_on": ["a", "b", 3]}, {"agent_depends_on": "a,b"}),
        ({"long": "x" * LONGEST}, {}),
        (["no", "map"], {}),
        (None, {}),
    ],
    ids=str,
)
def test_strings_are_found_and_nothing_else(said: object, found: dict[str, str]) -> None:
    body = json.dumps({"model": "m", "messages": [], "metadata": said}).encode()
    assert metadata(read(Endpoint.CHAT, body)) == found


def test_a_body_may_have_none() -> None:
    assert metadata(read(Endpoint.CHAT, b'{"messages": []}')) == {}
