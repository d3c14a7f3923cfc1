"""An aiohttp application on a free port, for tests that call one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web
from aiohttp.typedefs import Handler


@asynccontextmanager
async def answering(method: str, path: str, handler: Handler) -> AsyncIterator[str]:
    """Answer on one route inside the block; give ``host:port``."""
    application = web.Application()
    application.router.add_route(method, path, handler)
    runner = web.AppRunner(application)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
