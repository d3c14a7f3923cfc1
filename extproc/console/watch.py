"""Watches one Tidegate for all who look at it.

Rules this module keeps:

* However many browsers are open, Tidegate is asked once a second: making its state takes the time of
  the loop that decides.
* Where Tidegate cannot be reached, that is shown, and it is tried again for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from grpc import aio

from extproc.console.api import ControlApi
from extproc.console.history import History
from extproc.control.pb import state_pb2

log = logging.getLogger(__name__)

_AGAIN_SECONDS = 1.0


class Watch:
    """The newest state and what came before.

    Attributes:
        state: the last one, or None before the first.
        problem: why there is none now, as gRPC names it, such as ``UNAVAILABLE``; "" while there is.
        history: for the charts.

    Args:
        api: where to watch.
        token: a viewer's; the console's own, because nobody may be logged in.
    """

    def __init__(self, api: ControlApi, token: str) -> None:
        self.state: state_pb2.State | None = None
        self.problem = "UNAVAILABLE"
        self.history = History()
        self._api = api
        self._token = token
        self._news = asyncio.Event()

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            try:
                async for state in self._api.states(self._token):
                    self.state = state
                    self.history.add(state)
                    self._tell("")
                problem = "UNAVAILABLE"
            except aio.AioRpcError as error:
                problem = error.code().name
            if problem != self.problem:
                log.warning("the control API cannot be watched", extra={"code": problem})
                self._tell(problem)
            await asyncio.sleep(_AGAIN_SECONDS)

    async def news(self, seconds: float) -> None:
        """Wait until something has changed, but no longer than this."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._news.wait()

    def _tell(self, problem: str) -> None:
        self.problem = problem
        self._news.set()
        self._news = asyncio.Event()
