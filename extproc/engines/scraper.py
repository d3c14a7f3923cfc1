"""Reads the metrics of one endpoint, again and again.

Rules this module keeps:

* One request at a time, at fixed points of time from a random phase on: a late answer costs the
  points that it slept through, they are not made up for.
* Whatever an endpoint does (hangs, drips, never ends, redirects, answers nonsense) is over after
  the timeout and becomes one ``failed``. Nothing that it does can raise out of here.
* A fault of Tidegate's own, the listener's included, becomes one too: the next scrape is a new
  attempt.
* The log has a line when an endpoint becomes unreadable, with the trace where that is our fault,
  and one when it is readable again; not more.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import os
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NoReturn

import aiohttp

from extproc.config import Scrape
from extproc.core.readings import Reading
from extproc.engines.listener import Listener
from extproc.engines.page import NotAnEnginePage, parse

MAX_PAGE = 2 << 20
"""Bytes; a longer page is refused. One engine's page has 50 to 60 KB."""

Clock = Callable[[], float]
Sleep = Callable[[float], Awaitable[None]]

# Uncompressed: packing the page would cost the engine's event loop more than the bytes are worth.
_HEADERS = {"accept": "text/plain", "accept-encoding": "identity", "user-agent": "tidegate"}

_log = logging.getLogger(__name__)


class ScrapeError(Exception):
    """The endpoint's answer is of no use; the text says why, in one line."""


def open_session() -> aiohttp.ClientSession:
    """Return a session fit for scraping: no cookies, no waiting for another's connection."""
    return aiohttp.ClientSession(
        # Each endpoint has one connection; between two scrapes it stays open.
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=75.0),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None),  # the scraper has its own
    )


class Scraper:
    """Scrapes one endpoint of one pool.

    Args:
        pool: the pool's name.
        endpoint: ``host:port``.
        models: the names under which the server may serve the pool's model, the first one first.
        settings: interval, timeout and path.
        session: sends the requests; see `open_session`.
        clock: monotonic, in seconds.
        rng: chooses the phase, so that endpoints (and Tidegates) do not ask in step.
    """

    def __init__(
        self,
        pool: str,
        endpoint: str,
        models: Sequence[str],
        settings: Scrape,
        session: aiohttp.ClientSession,
        listener: Listener,
        *,
        clock: Clock,
        rng: random.Random,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self.pool = pool
        self.endpoint = endpoint
        self._models = tuple(models)
        self._settings = settings
        self._session = session
        self._listener = listener
        self._clock = clock
        self._rng = rng
        self._sleep = sleep
        self._read_at = -math.inf
        self._state = "new"

    def __repr__(self) -> str:
        return f"<Scraper {self.pool} {self.endpoint}: {self._state}>"

    async def run(self) -> NoReturn:
        """Scrape until cancelled: at once, then at each interval from a random phase on."""
        interval = self._settings.interval
        due = self._clock() - interval * self._rng.random()
        while True:
            await self.scrape()
            now = self._clock()
            due = next_due(due, now, interval)
            await self._sleep(due - now)

    async def scrape(self) -> None:
        """Ask once and tell the listener what came of it."""
        sent_at = self._clock()
        try:
            self._listener.sending(self.pool, self.endpoint)
            reading = choose(parse(await self._fetch()), self._models)
            self._listener.observed(self.pool, self.endpoint, reading, sent_at)
        except (ScrapeError, NotAnEnginePage) as error:
            self._failed(str(error))
        except TimeoutError:
            self._failed(f"no answer within {self._settings.timeout:g} s")
        except (aiohttp.ClientResponseError, aiohttp.ClientPayloadError):
            self._failed("the answer is broken HTTP, or none")  # its text would quote the answer
        except aiohttp.ClientConnectorError as error:
            self._failed(f"cannot connect: {_reason(error.os_error)}")
        except (aiohttp.ClientError, OSError) as error:
            self._failed(_one_line(error))
        except Exception as error:
            self._failed(f"a fault of Tidegate's own: {type(error).__name__}", fault=error)
        else:
            self._succeeded(sent_at)

    async def _fetch(self) -> bytes:
        url = f"http://{self.endpoint}{self._settings.path}"
        # One limit for all of it, connecting and the last byte included.
        async with (
            asyncio.timeout(self._settings.timeout),
            self._session.get(url, headers=_HEADERS, allow_redirects=False) as response,
        ):
            if response.status != 200:
                raise ScrapeError(f"HTTP status {response.status} instead of 200")
            page = bytearray()
            async for chunk in response.content.iter_any():
                page += chunk
                if len(page) > MAX_PAGE:
                    raise ScrapeError(f"the page has more than {MAX_PAGE >> 20} MiB")
            return bytes(page)

    def _succeeded(self, sent_at: float) -> None:
        self._read_at = sent_at
        self._enter("readable", logging.INFO)

    def _failed(self, problem: str, *, fault: Exception | None = None) -> None:
        self._listener.failed(self.pool, self.endpoint, problem)
        # An endpoint that now and then misses a scrape stays readable as long as its reading is
        # fresh; so it cannot fill the log.
        if self._clock() - self._read_at > self._settings.stale_after:
            state = "unreadable" if fault is None else "unreadable by a fault of ours"
            self._enter(state, logging.WARNING, fault, problem=problem)

    def _enter(self, state: str, level: int, fault: Exception | None = None, **more: str) -> None:
        if state != self._state:
            self._state = state
            context = {"pool": self.pool, "endpoint": self.endpoint, **more}
            _log.log(level, "endpoint is %s", state, extra=context, exc_info=fault)


def next_due(due: float, now: float, interval: float) -> float:
    """Return the first point after ``now`` that lies whole intervals after ``due``."""
    missed = max(0, math.floor((now - due) / interval))
    return due + (missed + 1) * interval


def choose(readings: Mapping[str, Reading], models: Sequence[str]) -> Reading:
    """Return the reading of the first of ``models`` that is there, or that of the only model.

    Raises:
        ScrapeError: there are several models, and none of them is ours.
    """
    for model in models:
        if model in readings:
            return readings[model]
    if len(readings) == 1:
        return next(iter(readings.values()))
    raise ScrapeError(
        f"the server has {len(readings)} models and none is called {' or '.join(models)}: "
        "name the pool as the server does, or add an alias"
    )


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())[:200]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _reason(error: OSError) -> str:
    """Return the system's words, which asyncio replaces; a resolver's numbers are not the system's."""
    known = errno.errorcode.keys() & {error.errno}
    return os.strerror(known.pop()) if known else str(error.strerror)
