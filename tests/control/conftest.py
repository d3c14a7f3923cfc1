"""A Tidegate whose control API is served for the tests, and callers of every role."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from grpc import aio

from extproc import app
from extproc.app import Tidegate
from extproc.config import Role, parse
from extproc.control.auth import token_line
from extproc.control.client import Access, connect
from extproc.control.room import ControlRoom

CONFIG = """\
listen: {{control: "unix://{directory}/control.sock"}}
control: {{tokens: {directory}/tokens.yaml, directory: {directory}/kept}}
identity: {{sources: [{{header: {{name: x-tenant-id, trusted: true}}}}]}}
tenants: {{pay: {{class: P0}}, service: {{class: P1}}, marketing: {{class: P2}}}}
fallback: {{language: en}}
pools: {{qwen: {{endpoints: {{static: ["127.0.0.1:9"]}}, max_concurrency: 4}}}}
"""


@dataclass
class Served:
    """A Tidegate and the ways to its control API."""

    tidegate: Tidegate
    directory: Path
    stack: AsyncExitStack

    @property
    def room(self) -> ControlRoom:
        assert self.tidegate.control is not None
        return self.tidegate.control

    async def as_(self, token: str) -> aio.Channel:
        """Return a channel for who has this token; the tests' tokens are their roles."""
        access = Access(self.tidegate.config.listen.control, token)
        return await self.stack.enter_async_context(connect(access))


@pytest.fixture
def directory() -> Iterator[Path]:
    """A folder with a short path, because a socket's must be, and a token for each role."""
    with tempfile.TemporaryDirectory(prefix="tidegate-") as short:
        tokens = "".join(token_line(role.value, f"the-{role.value}", role) for role in Role)
        Path(short, "tokens.yaml").write_text(tokens, encoding="utf-8")
        yield Path(short)


@pytest.fixture
def config_text(directory: Path) -> str:
    """The configuration."""
    return CONFIG.format(directory=directory)


@pytest.fixture
def built(config_text: str) -> Tidegate:
    """A Tidegate that does not serve yet; its pool has one endpoint."""
    made = app.build(parse(config_text))
    made.pools["qwen"].join("e")
    return made


@pytest.fixture
def make_served() -> Callable[[Tidegate, Path, AsyncExitStack], Awaitable[Served]]:
    """Serve the control API of a Tidegate until the stack ends."""

    async def serve(tidegate: Tidegate, directory: Path, stack: AsyncExitStack) -> Served:
        assert tidegate.control is not None
        await stack.enter_async_context(tidegate.control.serving())
        return Served(tidegate, directory, stack)

    return serve


@pytest.fixture
async def served(built: Tidegate, directory: Path, make_served: Any) -> AsyncIterator[Served]:
    """A Tidegate that serves its control API."""
    async with AsyncExitStack() as stack:
        yield await make_served(built, directory, stack)
