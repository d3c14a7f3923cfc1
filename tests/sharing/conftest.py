"""Real servers, Redis and Valkey, and links to them."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from extproc.sharing.link import Link


@pytest.fixture(scope="session", params=["redis", "valkey"])
def shared_server(request: pytest.FixtureRequest, serving: Any) -> Iterator[Any]:
    """One server of each kind, for all tests that leave it running."""
    with serving(request.param) as server:
        yield server


@pytest.fixture
def server(shared_server: Any) -> Any:
    """An empty server."""
    with shared_server.client as client:
        client.flushall()
    return shared_server


@pytest.fixture
def own_server(serving: Any) -> Iterator[Any]:
    """A server for a test that stops it."""
    with serving("valkey") as server:
        yield server


@pytest.fixture
async def linked() -> AsyncIterator[Callable[[Any], Any]]:
    """Open links that are up; they are closed after the test."""
    async with contextlib.AsyncExitStack() as stack:

        @contextlib.asynccontextmanager
        async def opened(server: Any) -> AsyncIterator[Link]:
            reached = asyncio.Event()
            link = Link(server.url, random.Random(1), lambda _: reached.set())
            task = asyncio.create_task(link.run())
            try:
                await asyncio.wait_for(reached.wait(), 10)
                yield link
            finally:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task

        async def link_to(server: Any) -> Link:
            return await stack.enter_async_context(opened(server))

        yield link_to
