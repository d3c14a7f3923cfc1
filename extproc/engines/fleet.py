"""Keeps every endpoint of every pool under observation.

Rules this module keeps:

* Everything runs in task groups under `Fleet.run`; cancelling that ends everything.
* An endpoint that appears gets a scraper; one that vanishes loses it, and ``left`` is told when
  nothing more can come from it.
* What cannot be looked up stays as it was: no endpoint is lost because DNS or a file is.
* No endpoint and no pool waits for another. A fault of ours in one scrape or lookup is reported and
  tried again at the next (see `scraper`); a listener that raises in ``failed``, ``joined``,
  ``left`` or ``undiscovered`` breaks its promise and ends the fleet with that error.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Collection, Mapping
from typing import NoReturn

import aiohttp

from extproc.config import PoolConfig
from extproc.engines import discovery
from extproc.engines.discovery import DiscoveryError, Resolve, Source
from extproc.engines.listener import Listener
from extproc.engines.scraper import Clock, Scraper, Sleep, open_session

_log = logging.getLogger(__name__)

_LONG = 3600.0


class Fleet:
    """All pools' endpoints.

    Args:
        pools: what the configuration says, by the pool's name.
        listener: who is told.
        clock: monotonic, in seconds.
        rng: spreads the scrapes over time.
        sleep: waits; another one than asyncio's for tests and simulations.
        resolve: looks names up; another one than the system's for tests.
    """

    def __init__(
        self,
        pools: Mapping[str, PoolConfig],
        listener: Listener,
        *,
        clock: Clock,
        rng: random.Random,
        sleep: Sleep = asyncio.sleep,
        resolve: Resolve = discovery.resolve,
    ) -> None:
        self._pools = dict(pools)
        self._listener = listener
        self._clock = clock
        self._rng = rng
        self._sleep = sleep
        self._resolve = resolve

    async def run(self) -> None:
        """Discover and scrape until cancelled.

        Raises:
            ExceptionGroup: the listener raised where it must not.
        """
        async with open_session() as session, asyncio.TaskGroup() as group:
            for name, pool in self._pools.items():
                group.create_task(self._watch(name, pool, session), name=f"pool {name}")

    async def _watch(self, name: str, pool: PoolConfig, session: aiohttp.ClientSession) -> None:
        """Keep one scraper for each endpoint that the pool's source names."""
        source = discovery.source(pool.endpoints, self._resolve)
        scrapers: dict[str, asyncio.Task[NoReturn]] = {}
        problem: str | None = None
        async with asyncio.TaskGroup() as group:
            while True:
                endpoints, problem = await self._read(name, source, problem)
                if endpoints is not None:
                    await _stop([scrapers.pop(gone) for gone in scrapers.keys() - endpoints])
                    for endpoint in sorted(endpoints - scrapers.keys()):
                        scrapers[endpoint] = group.create_task(
                            self._attend(name, endpoint, pool, session),
                            name=f"scrape {name} {endpoint}",
                        )
                if source.period is None:
                    return  # the group goes on scraping
                await self._sleep(source.period)

    async def _attend(
        self, name: str, endpoint: str, pool: PoolConfig, session: aiohttp.ClientSession
    ) -> NoReturn:
        scraper = Scraper(
            name,
            endpoint,
            (name, *pool.aliases),
            pool.scrape,
            session,
            self._listener,
            clock=self._clock,
            rng=self._rng,
            sleep=self._sleep,
        )
        self._listener.joined(name, endpoint)
        _log.info("endpoint joined", extra={"pool": name, "endpoint": endpoint})
        try:
            if pool.scrape.enabled:
                await scraper.run()
            while True:  # what is known of it, others tell
                await self._sleep(_LONG)
        finally:
            self._listener.left(name, endpoint)
            _log.info("endpoint left", extra={"pool": name, "endpoint": endpoint})

    async def _read(
        self, name: str, source: Source, before: str | None
    ) -> tuple[frozenset[str] | None, str | None]:
        """Return the endpoints or the problem, and log where that differs from ``before``."""
        problem, fault = None, None
        try:
            endpoints = await source.read()
        except DiscoveryError as error:
            endpoints, problem = None, str(error)
        except Exception as error:
            endpoints, problem = None, f"a fault of Tidegate's own: {type(error).__name__}"
            fault = error
        if problem is not None:
            self._listener.undiscovered(name, problem)
        if problem != before:
            context = {"pool": name, "problem": problem}
            if problem is None:
                _log.info("endpoints can be looked up again", extra=context)
            else:
                _log.warning("endpoints cannot be looked up", extra=context, exc_info=fault)
        return endpoints, problem


async def _stop(tasks: Collection[asyncio.Task[NoReturn]]) -> None:
    """Cancel the tasks and wait until each has come to its end."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
