"""Watches one Tidegate for all who look at it.

Rules this module keeps:

* However many browsers are open, Tidegate is asked once a second: making its state takes the time of
  the loop that decides.
* Where Tidegate cannot be reached or falls silent, that is shown, and it is tried again for ever.
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
_SILENCE_SECONDS = 5.0
"""A state comes each second."""


class Watch:
    """The newest state and what came before.

    Attributes:
        state: the last one, or None before the first.
        problem: why there is none now, as gRPC names it, such as ``UNAVAILABLE``; "" while there is.
        history: for the charts.

    Args:
        api: where to watch.
        token: a viewer's; the console's own, because nobody may be logged in.
        again: seconds before it is tried again.
        silence: seconds without a state after which the connection counts as lost.
    """

    def __init__(
        self,
        api: ControlApi,
        token: str,
        *,
        again: float = _AGAIN_SECONDS,
        silence: float = _SILENCE_SECONDS,
    ) -> None:
        self.state: state_pb2.State | None = None
        self.problem = "UNAVAILABLE"
        self.history = History()
        self._api = api
        self._token = token
        self._again = again
        self._silence = silence
        self._news = asyncio.Event()

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            problem = await self._watch()
            if problem != self.problem:
                log.warning("the control API cannot be watched", extra={"code": problem})
                self._tell(problem)
            await asyncio.sleep(self._again)

    async def _watch(self) -> str:
        """Watch as long as it goes; return why it does not any more."""
        states = self._api.states(self._token)
        async with contextlib.aclosing(states):
            try:
                while True:
                    async with asyncio.timeout(self._silence):
                        state = await anext(states)
                    self.state = state
                    self.history.add(state)
                    self._tell("")
            except StopAsyncIteration:
                return "UNAVAILABLE"
            except TimeoutError:
                return "DEADLINE_EXCEEDED"
            except aio.AioRpcError as error:
                return error.code().name

    async def news(self, seconds: float) -> None:
        """Wait until something has changed, but no longer than this."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._news.wait()

    def _tell(self, problem: str) -> None:
        self.problem = problem
        self._news.set()
        self._news = asyncio.Event()
