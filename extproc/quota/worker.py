"""A thread for calls that block, so that the event loop never does.

Rule this module keeps: the thread is a daemon. A call that hangs, because a database does, holds up
neither the loop nor the end of the process.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Worker:
    """Runs calls one after the other in a thread of its own, started with the first of them."""

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    async def __call__(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a call in the thread and return what it returns, or raise what it raises.

        Where the caller is cancelled, the call runs to its end all the same.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def work() -> None:
            try:
                told: Callable[[], None] = _result(future, call(*args, **kwargs))
            except BaseException as error:
                told = _failure(future, error)
            try:
                loop.call_soon_threadsafe(told)
            except RuntimeError:
                return  # the loop is closed: nobody waits any more

        if not self._thread.is_alive():
            self._thread.start()
        self._calls.put(work)
        return await future

    def stop(self) -> None:
        """End the thread after the calls that it has."""
        self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()


def _result(future: asyncio.Future[Any], value: object) -> Callable[[], None]:
    return lambda: None if future.done() else future.set_result(value)


def _failure(future: asyncio.Future[Any], error: BaseException) -> Callable[[], None]:
    return lambda: None if future.done() else future.set_exception(error)
