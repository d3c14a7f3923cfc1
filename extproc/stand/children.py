"""Child processes of the stand.

Rules this module keeps:

* Every child has a session of its own: Ctrl-C in the terminal reaches only the stand, which
  stops the children in the right order.
* Whatever ends the stand, no child outlives it: SIGTERM first, SIGKILL after a grace period.
* A child that ends by itself ends the stand, with the last lines that it wrote.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

GRACE_SECONDS = 5.0
_TAIL_LINES = 15


class ChildEndedError(RuntimeError):
    """A process of the stand ended although nobody asked it to."""

    def __init__(self, name: str, code: int, log: Path) -> None:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-_TAIL_LINES:])
        super().__init__(f"{name} ended with code {code}; the end of {log}:\n{tail}")


@dataclass(frozen=True, slots=True)
class Child:
    """A running process and the file that it writes to."""

    name: str
    process: asyncio.subprocess.Process
    log: Path

    async def ended(self) -> None:
        """Wait for the process and raise `ChildEndedError`: it was not meant to end."""
        raise ChildEndedError(self.name, await self.process.wait(), self.log)

    async def stop(self) -> None:
        """Stop the process and everything it started."""
        if self.process.returncode is None:
            _signal_group(self.process.pid, signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.process.wait(), GRACE_SECONDS)
        _signal_group(self.process.pid, signal.SIGKILL)
        await self.process.wait()


@asynccontextmanager
async def child(name: str, command: Sequence[str], directory: Path) -> AsyncIterator[Child]:
    """Run a command, its output in ``directory/name.log``, until the block is left."""
    log = directory / f"{name}.log"
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    started = Child(name, process, log)
    try:
        yield started
    finally:
        # Shielded: a second Ctrl-C must not leave a process behind.
        await asyncio.shield(started.stop())


def _signal_group(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, number)
