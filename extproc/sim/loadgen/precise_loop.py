"""An event loop whose timers are exact to some ten microseconds.

epoll counts in milliseconds, and so do asyncio and uvloop on top of it: a request would leave up to
a millisecond late, which is as much as the latencies that load is to measure.
"""

from __future__ import annotations

import asyncio
import select
import selectors


class _PreciseSelector(selectors.DefaultSelector):
    """Waits with select, which counts in microseconds, for the selector's own descriptor."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout > 0:
            select.select([self.fileno()], [], [], timeout)
        return super().select(0)


def precise_loop() -> asyncio.AbstractEventLoop:
    """Return a new loop; hand this function to `asyncio.Runner` as its ``loop_factory``."""
    return asyncio.SelectorEventLoop(_PreciseSelector())
