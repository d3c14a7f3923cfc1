"""From the event loop to the ledger, without the loop ever waiting: memory, then a file, then the ledger.

Rules this module keeps:

* `Outbox.put` appends to a list. Two tasks do the rest, each with a thread of its own: one stores
  what was put in the journal, one takes it from there into the ledger. A ledger that is slow, locked
  or gone holds up the second alone; the journal grows to its bound.
* What is stored arrives at the ledger at least once, and the ledger writes it once.
* What was put and is not yet stored is lost with the process; it is milliseconds old, and costs the
  tenant nothing.
* A record that the ledger refuses for what it says is put aside and told; it holds up no other.
* Memory is bounded: what finds the list full, because the disk fails as well, is dropped and counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from typing import ParamSpec, TypeVar

from sqlalchemy import exc as sa_errors

from extproc.quota.errors import LedgerUnavailableError
from extproc.quota.journal import Journal, Stored
from extproc.quota.ledger import Ledger, Started
from extproc.quota.plans import Plans
from extproc.quota.ports import Accounts, Hold, Settlement
from extproc.quota.worker import Worker

log = logging.getLogger(__name__)

GATHER_SECONDS = 0.02
"""How long records are gathered before they are stored together."""
BATCH = 1000
"""Records that go to the ledger in one commit."""
BUFFER = 100_000
"""Records that may be in memory."""
LOOK_SECONDS = 0.5
"""How often the ledger is looked at for what others did, and written to where there is something."""
SWEEP_SECONDS = 60.0
DRAIN_SECONDS = 5.0
"""How long the ledger may take, when the process ends, for what is in the file."""
CLOSE_SECONDS = 1.0
"""How long the ledger may take to let go of its connections."""
RETRY_SECONDS = (0.2, 5.0)
"""The first wait after a failure, which doubles, and the longest one."""

_DOWN = (sa_errors.DBAPIError, sa_errors.TimeoutError, LedgerUnavailableError, OSError)

P = ParamSpec("P")
T = TypeVar("T")


class RefusedError(ValueError):
    """The ledger will never take a record, for what it says."""


class Outbox:
    """Takes holds and settlements over on their way to the ledger; an `extproc.quota.ports.Outbox`.

    What is put before `run` waits in memory.

    Args:
        journal: the file, not yet open.
        ledger: where it all goes, not yet open.
        clock: returns Unix time in seconds.
    """

    def __init__(self, journal: Journal, ledger: Ledger, clock: Callable[[], float]) -> None:
        self._journal = journal
        self._ledger = ledger
        self._clock = clock
        self._buffer: list[Hold | Settlement] = []
        self._put = asyncio.Event()
        self._hurry = asyncio.Event()
        self._empty = asyncio.Event()
        self._in_journal = Worker("outbox")
        self._in_ledger = Worker("ledger")
        self._ends: float | None = None
        self._plans: Plans | None = None
        self._boundary = 0
        self.up = False
        """Whether the ledger could be reached when it was last needed."""
        self.dropped = 0
        """Records that found the memory full."""
        self.refused = 0
        """Records that the ledger will never take."""

    @property
    def backlog(self) -> int:
        """Records that are on their way."""
        return len(self._buffer) + self._journal.count

    @property
    def used(self) -> float:
        """Share of the file's bound that is taken, 0..1."""
        return self._journal.used

    @property
    def lag(self) -> float:
        """Seconds that the oldest record has been in the file; 0 where there is none."""
        oldest = self._journal.oldest
        return 0.0 if oldest is None else max(0.0, self._clock() - oldest)

    def put(self, record: Hold | Settlement) -> None:
        """Take one over; see `extproc.quota.ports.Outbox`."""
        if len(self._buffer) >= BUFFER:
            self.dropped += 1
            return
        self._buffer.append(record)
        self._put.set()

    def follow(self, plans: Plans) -> None:
        """Have the ledger go by other plans, as soon as it can be reached."""
        self._plans = plans

    async def open(self) -> None:
        """Open the file, and note that all calls of the process before this one are over.

        Raises:
            JournalError: the file cannot be used.
        """
        await self._in_journal(self._journal.open)
        started = Started(self._clock())
        self._boundary = await self._in_journal(self._journal.append, [started], started.at)

    @contextlib.asynccontextmanager
    async def carrying(self, accounts: Accounts) -> AsyncIterator[None]:
        """Open, and run while the block does; in the end let the ledger take what there is.

        Raises:
            JournalError: the file cannot be used.
        """
        await self.open()
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(self.run(accounts))
            try:
                yield
            finally:
                await self.drain(DRAIN_SECONDS)
                running.cancel()

    async def run(self, accounts: Accounts) -> None:
        """Carry records until cancelled, and close the file; what is in it waits for the next process.

        Args:
            accounts: hears what remains and what others have moved.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._store())
                tasks.create_task(self._settle(accounts))
        finally:
            await self._in_journal(self._journal.close)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_SECONDS):
                    await self._in_ledger(self._ledger.close)
            self._in_journal.stop()
            self._in_ledger.stop()

    async def drain(self, seconds: float) -> None:
        """Store what was put, and wait for the ledger to take it all, but not longer than that."""
        self._hurry.set()
        try:
            async with asyncio.timeout(seconds):
                while self.backlog:
                    self._empty.clear()
                    await self._empty.wait()
        except TimeoutError:
            log.warning(
                "the ledger gets the rest after the next start", extra={"records": self.backlog}
            )

    # From memory to the journal.

    async def _store(self) -> None:
        while True:
            await self._put.wait()
            self._put.clear()
            await asyncio.sleep(GATHER_SECONDS)
            while self._buffer:
                some = self._buffer[:BATCH]
                try:
                    await self._in_journal(self._journal.append, some, self._clock())
                except sqlite3.Error as error:
                    log.error("the outbox cannot be written", extra={"error": str(error)})
                    await asyncio.sleep(RETRY_SECONDS[1])
                else:
                    del self._buffer[: len(some)]

    # From the journal to the ledger.

    async def _settle(self, accounts: Accounts) -> None:
        """Tell what remains once all that the processes before have left is in the ledger; go on."""
        await self._insist(self._ledger.open, self._journal.owner)
        while await self._carry(self._boundary):
            pass
        remaining, last = await self._insist(self._ledger.remaining)
        accounts.opened(remaining)
        swept = -math.inf
        while True:
            while await self._carry(None):
                pass
            last = await self._look(accounts, last)
            if self._clock() - swept >= SWEEP_SECONDS:
                await self._insist(self._ledger.sweep)
                swept = self._clock()
            await self._rest()

    async def _carry(self, boundary: int | None) -> bool:
        """Take the oldest records, up to ``boundary``, into the ledger; say whether any were left."""
        stored = await self._in_journal(self._journal.read, BATCH)
        if boundary is not None:
            stored = [each for each in stored if each.number <= boundary]
        if not stored:
            if not self.backlog:
                self._empty.set()
            return False
        try:
            await self._insist(self._ledger.apply, [each.record for each in stored])
        except RefusedError:
            await self._one_by_one(stored)
        await self._in_journal(self._journal.forget, stored[-1].number)
        return True

    async def _one_by_one(self, stored: Sequence[Stored]) -> None:
        for each in stored:
            try:
                await self._insist(self._ledger.apply, [each.record])
            except RefusedError as error:
                log.error(
                    "the ledger refuses a record", extra={"number": each.number, "why": str(error)}
                )
                self.refused += 1
                await self._in_journal(self._journal.refuse, each.number, str(error))

    async def _look(self, accounts: Accounts, last: int) -> int:
        """Renew what is over, tell what others have moved, and return the last of it."""
        plans, self._plans = self._plans, None
        if plans is not None:
            await self._insist(self._ledger.follow, plans)
        self._ends = await self._insist(self._ledger.next_end)
        if self._ends is not None and self._ends <= self._clock():
            await self._insist(self._ledger.roll)
            self._ends = await self._insist(self._ledger.next_end)
        while True:
            moved, last = await self._insist(self._ledger.movements, last, BATCH)
            for each in moved:
                accounts.moved(each)
            if len(moved) < BATCH:
                return last

    async def _rest(self) -> None:
        """Wait until there may be something to do: the end of a period is kept to the instant."""
        pause = LOOK_SECONDS
        if self._ends is not None:
            pause = min(pause, max(0.0, self._ends - self._clock()))
        if self._hurry.is_set():
            await asyncio.sleep(GATHER_SECONDS)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause):  # wait_for would lose a cancellation now and then
                await self._hurry.wait()

    async def _insist(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the ledger until it can be reached.

        Raises:
            RefusedError: it was reached, and what is to be written is wrong.
        """
        pause, longest = RETRY_SECONDS
        while True:
            try:
                result = await self._in_ledger(call, *args, **kwargs)
            except (
                sa_errors.DataError,
                sa_errors.IntegrityError,
                OverflowError,
                ValueError,
            ) as error:
                raise RefusedError(type(error).__name__) from error
            except _DOWN as error:
                if self.up or pause == RETRY_SECONDS[0]:
                    log.error("the ledger cannot be reached", extra={"error": type(error).__name__})
                self.up = False
                await asyncio.sleep(pause)
                pause = min(longest, 2 * pause)
            else:
                self.up = True
                return result
