"""The way to Redis or Valkey: one script, one round trip, and an answer soon or none.

Rules this module keeps:

* A call that is not answered within `PATIENCE` is given up, and with it the link is down: whoever
  asks is told at once and goes on by what it knows itself. Nothing is sent twice.
* While it is down, `Link.run` tries to come back, a little less often each time. It is up when the
  server has written something: one that only loads, or can only be read, is of no use.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from importlib import resources
from typing import Any

from extproc.config import parse_redis_url
from extproc.sharing.resp import Connection, ServerError, connect

log = logging.getLogger(__name__)

PATIENCE = 0.25
"""Seconds for one round trip, or for one attempt to connect."""
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0
"""Seconds between attempts to come back."""
STEADY = 5.0
"""Seconds after which a link that was up is tried again as soon as a new one."""
PREFIX = "{tidegate}:"
"""Of every key. The braces keep all keys in one slot of a cluster, as a script needs them."""
MEMBERS = "members"
"""The key of the Tidegates that are alive."""
SILENCE = 5.0
"""Seconds after which a Tidegate that was not heard of is taken for dead: it holds nothing any more."""

_PROBLEMS = (OSError, ServerError, TimeoutError)


class LinkDownError(Exception):
    """There is no answer to be had; go on without."""


class Script:
    """A Lua script of this package."""

    def __init__(self, name: str) -> None:
        self.text = resources.files("extproc.sharing").joinpath(name).read_text(encoding="utf-8")
        self.digest = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()


class Link:
    """A connection that may be down.

    Attributes:
        up: there is reason to hope for an answer.
        round_trips: calls that were answered.

    Args:
        url: see `extproc.config.parse_redis_url`.
        rng: spreads the attempts of several Tidegates to come back.
        changed: hears that the link went up or down.
    """

    def __init__(
        self, url: str, rng: random.Random, changed: Callable[[bool], None] = lambda _: None
    ) -> None:
        self.up = False
        self.round_trips = 0
        self._address = parse_redis_url(url)
        self._rng = rng
        self._changed = changed
        self._connection: Connection | None = None
        self._complained = False

    def __repr__(self) -> str:
        return f"<Link {'up' if self.up else 'down'}, {self.round_trips} round trips>"

    async def call(self, script: Script, keys: Sequence[str], *arguments: bytes | str) -> Any:
        """Run a script on keys, and return what it says.

        Raises:
            LinkDownError: no answer.
        """
        rest = (str(len(keys)), *(PREFIX + key for key in keys), *arguments)

        async def talk(connection: Connection) -> Any:
            try:
                return await connection.send("EVALSHA", script.digest, *rest)
            except ServerError as problem:
                if problem.code != "NOSCRIPT":  # it was restarted; it has not run anything yet
                    raise
            return await connection.send("EVAL", script.text, *rest)

        return await self._answer(talk)

    async def put_first(self, key: str, milliseconds: int) -> bool:
        """Put a key there for so long, if nobody has yet; say whether that was so.

        Raises:
            LinkDownError: no answer.
        """

        async def talk(connection: Connection) -> Any:
            return await connection.send("SET", PREFIX + key, "", "NX", "PX", str(milliseconds))

        return await self._answer(talk) is not None

    async def _answer(self, talk: Callable[[Connection], Awaitable[Any]]) -> Any:
        connection = self._connection
        if connection is None:
            raise LinkDownError
        try:
            async with asyncio.timeout(PATIENCE):
                answer = await talk(connection)
        except _PROBLEMS as problem:
            self._down(problem)
            raise LinkDownError from problem
        self.round_trips += 1
        return answer

    async def run(self) -> None:
        """Keep the link up until cancelled."""
        loop, pause = asyncio.get_running_loop(), FIRST_PAUSE
        try:
            while True:
                began = loop.time()
                try:
                    async with asyncio.timeout(PATIENCE):
                        connection = await connect(self._address)
                        self._connection = connection
                        await connection.send("SET", f"{PREFIX}probe", "", "PX", "1")
                except _PROBLEMS as problem:
                    self._down(problem)
                else:
                    self._up()
                    await connection.lost
                    self._down(ConnectionResetError())
                pause = FIRST_PAUSE if loop.time() - began > STEADY else pause
                await asyncio.sleep(pause * self._rng.uniform(0.5, 1.0))
                pause = min(LONGEST_PAUSE, 2 * pause)
        finally:
            if self._connection is not None:
                self._connection.close()
            self._connection, self.up = None, False

    def _up(self) -> None:
        self.up, self._complained = True, False
        log.info("redis reached")
        self._changed(True)

    def _down(self, problem: Exception) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        if not self._complained:
            self._complained = True
            name = problem.code if isinstance(problem, ServerError) else type(problem).__name__
            log.warning("redis cannot be reached", extra={"error": name})
        if self.up:
            self.up = False
            self._changed(False)
