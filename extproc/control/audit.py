"""What was changed, by whom, when, from what to what, and why: for ever.

Rules this module keeps:

* An entry is on disk before the change is reported done: one JSON line, written and synced.
* Every entry is logged as well, so that a full disk loses none.
* What was changed stays changed where the file cannot be written: an operator in a peak must not be
  stopped by a disk. The caller is told.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from extproc.control.auth import Caller

log = logging.getLogger(__name__)

_BLOCK = 1 << 16


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One change.

    Attributes:
        at: Unix time in seconds.
        who, role, peer: who made it, in which role, from where.
        action: what was done, such as ``mode.set``.
        target: what it was done to, or "" where there is only one.
        before, after: from what to what, as plain data.
        reason: why.
    """

    at: float
    who: str
    role: str
    peer: str
    action: str
    target: str = ""
    before: object = None
    after: object = None
    reason: str


class Audit:
    """The audit of one Tidegate, in a file that only grows; ``wall_clock`` is Unix time in seconds."""

    def __init__(self, file: Path, wall_clock: Callable[[], float]) -> None:
        self._file = file
        self._wall_clock = wall_clock
        self._lock = asyncio.Lock()

    async def record(
        self,
        caller: Caller,
        action: str,
        *,
        before: object,
        after: object,
        reason: str,
        target: str = "",
    ) -> str | None:
        """Write down what a caller has changed; return what went wrong with that, or None."""
        entry = Entry(
            at=self._wall_clock(),
            who=caller.who,
            role=caller.role.value,
            peer=caller.peer,
            action=action,
            target=target,
            before=before,
            after=after,
            reason=reason,
        )
        log.info("audit", extra=msgspec.to_builtins(entry))
        async with self._lock:
            try:
                await asyncio.to_thread(self._append, msgspec.json.encode(entry) + b"\n")
            except OSError as error:
                log.error("audit cannot be written", extra={"error": error.strerror})
                return f"the audit cannot be written to {self._file}: {error.strerror}"
        return None

    def _append(self, line: bytes) -> None:
        with self._file.open("ab") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())

    async def newest(self, limit: int) -> list[Entry]:
        """Return the last entries, the newest first; what cannot be read is passed over."""
        return await asyncio.to_thread(self._newest, limit)

    def _newest(self, limit: int) -> list[Entry]:
        found: list[Entry] = []
        for line in _backwards(self._file):
            try:
                found.append(msgspec.json.decode(line, type=Entry))
            except msgspec.DecodeError:  # half a line, of a machine that lost its power
                continue
            if len(found) == limit:
                break
        return found


def _backwards(file: Path) -> Iterator[bytes]:
    """Yield the lines of a file, the last first, however long it is."""
    try:
        stream = file.open("rb")
    except FileNotFoundError:
        return
    with stream:
        position, rest = stream.seek(0, os.SEEK_END), b""
        while position > 0:
            size = min(_BLOCK, position)
            position = stream.seek(position - size)
            first, *lines = (stream.read(size) + rest).split(b"\n")
            yield from (line for line in reversed(lines) if line)
            rest = first
        if rest:
            yield rest
