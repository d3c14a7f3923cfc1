"""A console before the control API of a Tidegate that serves in the test's own process."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
from aiohttp import web
from grpc import aio

from extproc import app
from extproc.config import Role, parse
from extproc.console.api import ControlApi
from extproc.console.guard import Guard, origins
from extproc.console.server import Server
from extproc.console.watch import Watch
from extproc.control.auth import token_line
from extproc.control.client import Access, connect
from extproc.control.pb import decisions_pb2

CONFIG = """\
listen: {{control: "unix://{directory}/control.sock"}}
control: {{tokens: {directory}/tokens.yaml, directory: {directory}/kept}}
tenants: {{pay: {{class: P0}}, marketing: {{class: P2}}}}
pools: {{qwen: {{endpoints: {{static: ["127.0.0.1:9"]}}, max_concurrency: 4}}}}
"""

PROXY = "https://board.example"
"""Where browsers find the console, too: a proxy that speaks TLS."""


class Clock:
    """Seconds that tests let go by."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Browser:
    """Speaks to the console as a browser would; the tokens are the roles' names."""

    origin: str
    http: aiohttp.ClientSession
    clock: Clock
    api: ControlApi
    stop: Callable[[], Awaitable[None]]
    application: web.Application

    async def post(self, path: str, body: object = None, **headers: str) -> aiohttp.ClientResponse:
        """Send JSON as our own page does; ``None`` takes a header away."""
        sent = {"origin": self.origin} | headers
        reply = await self.http.post(self.origin + path, json=body or {}, headers=sent)
        await reply.read()
        return reply

    async def get(self, path: str, **headers: str) -> aiohttp.ClientResponse:
        reply = await self.http.get(self.origin + path, headers=headers)
        await reply.read()
        return reply

    async def log_in(self, token: str) -> aiohttp.ClientResponse:
        return await self.post("/api/login", {"token": token})

    def live(self, **headers: str) -> Any:
        """Open the websocket, as our own page does unless other headers are given."""
        url = self.origin.replace("http", "ws", 1) + "/live"
        return self.http.ws_connect(url, headers={"origin": self.origin} | headers)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def browser(clock: Clock) -> AsyncIterator[Browser]:
    """A browser that has not logged in; Tidegate and console are up."""
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tidegate-")))
        tokens = "".join(token_line(role.value, f"the-{role.value}", role) for role in Role)
        (directory / "tokens.yaml").write_text(tokens, encoding="utf-8")
        tidegate = app.build(parse(CONFIG.format(directory=directory)))
        assert tidegate.control is not None
        await stack.enter_async_context(tidegate.control.serving())
        channel = await stack.enter_async_context(connect(Access(tidegate.config.listen.control)))
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        port = listener.getsockname()[1]
        api = ControlApi(channel)
        watch = Watch(api, "viewer")
        guard = Guard(origins("127.0.0.1", port, encrypted=False, url=PROXY))
        runner = web.AppRunner(Server(api, watch, guard, clock).application(), shutdown_timeout=1)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.SockSite(runner, listener).start()
        watching = asyncio.ensure_future(watch.run())
        stack.push_async_callback(_stop, watching)
        cookies = aiohttp.CookieJar(unsafe=True)  # addresses are hosts, too
        http = await stack.enter_async_context(aiohttp.ClientSession(cookie_jar=cookies))
        yield Browser(f"http://127.0.0.1:{port}", http, clock, api, runner.cleanup, runner.app)


@pytest.fixture
def failing(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Any], None]:
    """Let a method of the console's `ControlApi` fail with a status: ``failing("caller", code)``."""

    def fail(name: str, code: grpc.StatusCode) -> None:
        error = aio.AioRpcError(code, aio.Metadata(), aio.Metadata(), details="as the test wants")

        async def call(*_: object) -> Any:
            raise error

        async def stream(*_: object) -> AsyncIterator[Any]:
            yield decisions_pb2.WatchDecisionsResponse(left_out=7)
            raise error

        monkeypatch.setattr(browser.api, name, stream if name == "stream" else call)

    return fail


async def _stop(task: asyncio.Future[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
