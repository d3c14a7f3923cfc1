"""The HTTP pages for machines: ``/metrics``, ``/healthz`` (alive), ``/readyz`` (takes traffic)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST


def pages(*, metrics: Callable[[], Awaitable[bytes]], ready: Callable[[], bool]) -> web.Application:
    """Return the application that serves the pages.

    Args:
        metrics: renders the page for Prometheus.
        ready: says whether this process takes traffic.
    """

    async def show_metrics(_: web.Request) -> web.Response:
        return web.Response(body=await metrics(), headers={"content-type": CONTENT_TYPE_LATEST})

    async def show_health(_: web.Request) -> web.Response:
        return web.Response(text="alive\n")

    async def show_readiness(_: web.Request) -> web.Response:
        if ready():
            return web.Response(text="ready\n")
        return web.Response(status=503, text="draining\n")

    application = web.Application()
    application.router.add_get("/metrics", show_metrics)
    application.router.add_get("/healthz", show_health)
    application.router.add_get("/readyz", show_readiness)
    return application
