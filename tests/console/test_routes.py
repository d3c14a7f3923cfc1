"""Every route of the console, as its router knows them: nothing but the page is open to strangers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.web_urldispatcher import StaticResource

import extproc.console
from extproc.console.api import METHODS
from extproc.console.server import COOKIE

STATIC = Path(extproc.console.__file__).parent / "static"
OPEN = {
    ("GET", "/"): 200,
    ("GET", "/healthz"): 200,
    ("GET", "/api/me"): 200,  # says that nobody is logged in
    ("POST", "/api/login"): 401,
    ("POST", "/api/logout"): 200,
}
"""What may be asked without a session, and what is answered then; the page's files besides."""


def requests(application: web.Application) -> Iterator[tuple[str, str]]:
    """Yield method and path of whatever the router serves, each file and API method by itself."""
    for route in application.router.routes():
        resource = route.resource
        assert resource is not None
        if isinstance(resource, StaticResource):
            for file in sorted(STATIC.rglob("*.*")):
                yield route.method, f"/static/{file.relative_to(STATIC)}"
        elif resource.canonical == "/api/{service}/{method}":
            for name in sorted(METHODS):
                yield route.method, f"/api/{name}"
        else:
            yield route.method, resource.canonical


async def statuses(browser: Any, **headers: str) -> dict[tuple[str, str], int]:
    """Ask for everything, with these headers."""
    found = {}
    for method, path in requests(browser.application):
        call = browser.http.request(method, browser.origin + path, json={}, headers=headers)
        async with call as reply:
            found[method, path] = reply.status
    return found


def test_every_kind_of_route_is_known_here(browser: Any) -> None:
    asked = set(requests(browser.application))
    paths = {path for _, path in asked if not path.startswith("/static/")}
    assert paths == {path for _, path in OPEN} | {"/live"} | {f"/api/{each}" for each in METHODS}
    assert OPEN.keys() <= asked


@pytest.mark.parametrize("cookie", ["", "guess", "x" * 5000, "operator"])
async def test_without_a_session_only_the_page_is_served(browser: Any, cookie: str) -> None:
    """Neither without a cookie nor with one of their own, nor with a token in its place."""
    headers = {"origin": browser.origin} | ({"cookie": f"{COOKIE}={cookie}"} if cookie else {})

    for (method, path), status in (await statuses(browser, **headers)).items():
        page = 200 if path.startswith("/static/") else 401
        expected = OPEN.get((method.replace("HEAD", "GET"), path), page)
        assert status == expected, f"{method} {path}"


@pytest.mark.parametrize("authorization", ["Bearer admin", "Basic YWRtaW46YWRtaW4="])
async def test_a_token_in_a_header_is_no_session(browser: Any, authorization: str) -> None:
    headers = {"origin": browser.origin, "authorization": authorization}
    asked = await statuses(browser, **headers)
    assert {asked["POST", f"/api/{each}"] for each in METHODS} == {401}
    assert asked["GET", "/live"] == 401


@pytest.mark.parametrize("origin", ["https://evil.example", "null", ""])
async def test_another_page_changes_nothing_with_the_session_of_its_victim(
    browser: Any, origin: str
) -> None:
    await browser.log_in("admin")
    asked = await statuses(browser, origin=origin)
    posts = {status for (method, _), status in asked.items() if method not in ("GET", "HEAD")}
    assert posts == {403}
    told = await (await browser.get("/api/me")).json()
    assert told["who"] == "the-admin", "not even logged out"


async def test_methods_that_no_route_has_are_refused(browser: Any) -> None:
    await browser.log_in("admin")
    ours = {"origin": browser.origin}
    for method in ("PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"):
        for path in {path for _, path in requests(browser.application)}:
            async with browser.http.request(method, browser.origin + path, headers=ours) as reply:
                assert reply.status in (404, 405), f"{method} {path}"
