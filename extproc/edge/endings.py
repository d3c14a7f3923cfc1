"""Every admitted exchange ends with exactly one record, whoever tells of the end.

Rules this module keeps:

* Envoy's access log tells most: how it ended, and what was used. It filters by the metadata of our
  verdict, so a client that leaves before Envoy has read the verdict leaves no entry. What is still
  untold `GRACE` seconds after its ext_proc stream ended is therefore told as `client_gone`.
* What was told is not told again: not by an entry that comes late, nor by one that Envoy sends anew.
* What we know better counts: the outcome of what we cut or answered in the engine's stead, which in
  Envoy's eyes ended well, and the usage that an editor has read, where Envoy has read none.
* An entry of an exchange that this process never saw, as after a restart, is told as it is.
* Where entries may come late, because others hear of them first and cannot pass them on, they are
  waited for up to `PATIENCE`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from msgspec.structs import replace

from extproc.core.outcomes import Outcome
from extproc.core.records import Decided, Ended

GRACE = 2.0
"""Seconds that an access-log entry may come after the end of its exchange's stream; it takes
`contract.LOG_INTERVAL`, and longer only where this process is starved of CPU."""
PATIENCE = 60.0
"""Seconds that are waited for an entry at most, where it may be late."""
REMEMBERED = 4096
"""Ends that are remembered at least, so that they are told once."""


class Meter(Protocol):
    """Counts the tokens of an answer as it passes."""

    @property
    def usage(self) -> tuple[int, int] | None:
        """What the engine has reported so far: tokens of the prompt and of the output."""
        ...

    @property
    def delivered_tokens(self) -> int:
        """Tokens of output passed on, as far as that can be told."""
        ...


@dataclass(slots=True)
class _Open:
    """An admitted exchange whose end is not told yet."""

    tenant: str
    service_class: str
    pool: str
    since: float
    outcome: Outcome | None = None
    meter: Meter | None = None

    @property
    def tokens(self) -> tuple[int | None, int | None]:
        """Return the tokens of prompt and output, as far as they were seen here."""
        if self.meter is None:
            return None, None
        return self.meter.usage or (None, self.meter.delivered_tokens or None)


class Endings:
    """Waits for the end of each admitted exchange, and tells it once."""

    def __init__(
        self, tell: Callable[[Ended], None], clock: Callable[[], float], *, grace: float = GRACE
    ) -> None:
        self._tell = tell
        self._clock = clock
        self._grace = grace
        self._open: dict[str, _Open] = {}
        self._released: deque[tuple[float, str]] = deque()
        self._told: set[str] = set()
        self._told_before: set[str] = set()
        self.late: Callable[[], bool] = lambda: False
        """Says whether entries may come late."""

    def __repr__(self) -> str:
        return f"<Endings: {len(self._open)} open>"

    def admitted(self, record: Decided) -> None:
        """Expect the end of an exchange that was just let in."""
        self._open[record.id] = _Open(
            record.tenant, record.service_class, record.pool, self._clock()
        )

    def known(self, exchange: str, outcome: Outcome) -> None:
        """Hear how an exchange is about to end, whatever the access log will say."""
        known = self._open.get(exchange)
        if known is not None:
            known.outcome = outcome

    def metered(self, exchange: str, meter: Meter) -> None:
        """Hear who sees the answer of an exchange pass."""
        known = self._open.get(exchange)
        if known is not None:
            known.meter = meter

    def released(self, exchange: str) -> None:
        """Hear that an exchange's stream is over; harmless where nothing is expected of it."""
        known = self._open.get(exchange)
        if known is not None:
            self._released.append((self._clock(), exchange))

    def logged(self, record: Ended) -> None:
        """Hear from the access log how an exchange ended."""
        known = self._open.pop(record.id, None)
        if known is not None and (known.outcome is not None or known.meter is not None):
            record = _completed(record, known)
        self._tell_once(record)

    async def all_told(self) -> None:
        """Wait until no end is expected any more; for the end of the process."""
        while self._open:  # noqa: ASYNC110 (an event would cost every call, for the last ones' sake)
            await asyncio.sleep(0.01)

    async def run(self) -> None:
        """Tell what the access log does not, until cancelled."""
        while True:
            await asyncio.sleep(self._grace / 4)
            self.sweep()

    def sweep(self) -> None:
        """Tell the ends that the access log has had its time for."""
        now, grace = self._clock(), PATIENCE if self.late() else self._grace
        while self._released and self._released[0][0] + grace <= now:
            self._give_up(*self._released.popleft())

    def flush(self) -> None:
        """Tell all ends that are due, without waiting any longer: nothing more will be logged."""
        while self._released:
            self._give_up(*self._released.popleft())

    def _give_up(self, ended: float, exchange: str) -> None:
        left = self._open.pop(exchange, None)
        if left is not None:
            prompt_tokens, completion_tokens = left.tokens
            self._tell_once(
                Ended(
                    id=exchange,
                    tenant=left.tenant,
                    service_class=left.service_class,
                    pool=left.pool,
                    outcome=left.outcome or Outcome.CLIENT_GONE,
                    prompt_tokens=prompt_tokens,
                    completion_tokens=completion_tokens,
                    seconds=ended - left.since,
                )
            )

    def _tell_once(self, record: Ended) -> None:
        if record.id in self._told or record.id in self._told_before:
            return
        if len(self._told) >= REMEMBERED:
            self._told_before, self._told = self._told, set()
        self._told.add(record.id)
        self._tell(record)


def _completed(record: Ended, known: _Open) -> Ended:
    """Return the record with what we know better."""
    prompt_tokens, completion_tokens = known.tokens
    if record.prompt_tokens is not None:
        prompt_tokens = record.prompt_tokens
    if record.completion_tokens is not None:
        completion_tokens = record.completion_tokens
    return replace(
        record,
        outcome=known.outcome or record.outcome,
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
    )
