"""Whatever a browser that is logged in sends: an answer below 500, and no fault of ours in the log."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from extproc.console.api import METHODS
from extproc.control.room import NEEDED

SETTINGS = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
PATHS = [f"/api/{each}" for each in sorted(METHODS)]

odd = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
json_values = st.recursive(
    odd,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
raw = st.binary(max_size=60) | st.sampled_from([b"[" * 60_000, b"{" * 70_000])
printable = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), max_size=40)
"""What a client library lets out at all, in an address or a cookie."""


def fields(path: str) -> st.SearchStrategy[dict[str, Any]]:
    """Return objects with the fields of a method, or without, that hold anything at all."""
    names = [each.name for each in METHODS[path.removeprefix("/api/")].request.DESCRIPTOR.fields]
    return st.fixed_dictionaries({}, optional=dict.fromkeys(names, json_values))


def faults(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what was logged of faults of ours."""
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR]


@pytest.mark.parametrize("path", [*PATHS, "/api/login", "/api/logout"])
@SETTINGS
@given(data=st.data())
async def test_bodies_of_any_kind_are_answered(
    browser: Any, caplog: pytest.LogCaptureFixture, path: str, data: st.DataObject
) -> None:
    caplog.clear()
    known = fields(path) if path in PATHS else st.dictionaries(st.just("token"), json_values)
    body = data.draw((known | json_values).map(json.dumps) | raw)
    role = str(NEEDED.get(f"/tidegate.v1.{path.removeprefix('/api/')}", "viewer"))
    browser.clock.now += 60  # time for new attempts
    assert (await browser.log_in(role)).status == 200

    headers = {"origin": browser.origin, "content-type": "application/json"}
    async with browser.http.post(browser.origin + path, headers=headers, data=body) as reply:
        status = reply.status  # some answers go on for ever

    assert status < 500
    assert faults(caplog) == []


@SETTINGS
@given(address=printable, cookie=printable)
async def test_addresses_and_cookies_of_any_kind_are_answered(
    browser: Any, caplog: pytest.LogCaptureFixture, address: str, cookie: str
) -> None:
    caplog.clear()
    for method in ("GET", "POST", "DELETE"):
        headers = {"origin": browser.origin, "cookie": cookie}
        call = browser.http.request(
            method, f"{browser.origin}/{address}", headers=headers, allow_redirects=False
        )
        async with call as reply:
            assert reply.status < 500

    assert faults(caplog) == []
