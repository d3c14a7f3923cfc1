"""What is known of the engines' KV cache, and what is in flight: the books of one pool.

Rules this module keeps:

* A missing, failed or old reading is never taken for an idle engine.
* Readings are fresh, stale or unknown by their age. A stale one counts with watermarks that rise
  linearly to twice their value; an unknown one does not count, and where all are unknown only
  concurrency limits the pool.
* Every class is judged at every change, not when a call of it comes: so a class cannot stay open
  because nobody asked while the pool was full. Where one is closed, all under it are closed too.
* What is reserved is released once, whoever says so and however often.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from extproc.core.classes import ServiceClass

STALE_TIGHTENING = 1.0
"""By how much watermarks have risen, relative to their value, when a reading becomes unknown."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What one scrape of one endpoint said about one model.

    Attributes:
        kv_usage: used share of the KV cache, 0..1; of several engines behind one endpoint the worst.
        blocks: KV blocks in all (sum over engines), or None where the page does not say.
        block_size: tokens per block, or None where the page does not say.
        running: sequences being computed (sum over engines).
        waiting: sequences in the engines' own queues (sum over engines).
        preemptions: preemptions since the engine started (sum over engines; a counter).
    """

    kv_usage: float
    blocks: int | None
    block_size: int | None
    running: int
    waiting: int
    preemptions: int


class Freshness(StrEnum):
    """How far the reading of an endpoint can be trusted."""

    FRESH = "fresh"
    STALE = "stale"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """What the configuration says of a pool; times in seconds."""

    max_concurrency: int
    stale_after: float
    unknown_after: float


@dataclass(slots=True)
class EndpointState:
    """One engine endpoint: its last reading, when that was asked for, and what last went wrong."""

    reading: Reading | None = None
    read_at: float = -math.inf
    problem: str | None = None

    def age(self, now: float) -> float:
        """Return the age of the reading in seconds; infinite where there is none."""
        return now - self.read_at


@dataclass(frozen=True, slots=True)
class Load:
    """The numbers that a capacity decision rests on.

    Attributes:
        free: observed free ratio of the pool, 0..1, or None where nothing is known.
        tightening: factor >= 1 on the watermarks, for readings that are stale.
        in_flight: exchanges that hold capacity.
        endpoints: how many endpoints are known.
    """

    free: float | None
    tightening: float
    in_flight: int
    endpoints: int


class Pool:
    """The books of the endpoints that serve one model. One writer: the event loop."""

    def __init__(self, name: str, limits: PoolLimits, classes: Sequence[ServiceClass]) -> None:
        self.name = name
        self.limits = limits
        self.classes = tuple(classes)
        self.endpoints: dict[str, EndpointState] = {}
        self._in_flight: set[str] = set()
        self._closed = [False] * len(self.classes)
        self._free: float | None = None
        self._tightening = 1.0
        self._recompute_at = math.inf

    def __repr__(self) -> str:
        free = "?" if self._free is None else f"{self._free:.3f}"
        closed = [c.name for c, shut in zip(self.classes, self._closed, strict=True) if shut]
        return (
            f"<Pool {self.name}: {len(self.endpoints)} endpoints, free {free}, "
            f"{len(self._in_flight)}/{self.limits.max_concurrency} in flight, closed {closed}>"
        )

    # What the engines say.

    def join(self, endpoint: str) -> None:
        """Add an endpoint; nothing is known of it yet."""
        self.endpoints.setdefault(endpoint, EndpointState())

    def leave(self, endpoint: str, now: float) -> None:
        """Forget an endpoint and what it said."""
        self.endpoints.pop(endpoint, None)
        self._recompute(now)

    def observe(self, endpoint: str, reading: Reading, *, read_at: float, now: float) -> None:
        """Take a reading that was asked for at ``read_at``; a late answer never replaces a newer one."""
        state = self.endpoints.get(endpoint)
        if state is None or read_at < state.read_at:
            return
        state.reading, state.read_at, state.problem = reading, read_at, None
        self._recompute(now)

    def fail(self, endpoint: str, problem: str) -> None:
        """Note that an endpoint could not be read; its last reading ages on."""
        state = self.endpoints.get(endpoint)
        if state is not None:
            state.problem = problem

    def freshness(self, endpoint: str, now: float) -> Freshness:
        """Return how far the endpoint's reading can be trusted now."""
        age = self.endpoints[endpoint].age(now)
        if age > self.limits.unknown_after:
            return Freshness.UNKNOWN
        return Freshness.STALE if age > self.limits.stale_after else Freshness.FRESH

    # What is in flight.

    @property
    def in_flight(self) -> int:
        """Return how many exchanges hold capacity."""
        return len(self._in_flight)

    def reserve(self, exchange: str) -> None:
        """Count an exchange in; once, however often it is said."""
        self._in_flight.add(exchange)

    def release(self, exchange: str) -> None:
        """Count an exchange out; harmless where it is not in."""
        self._in_flight.discard(exchange)

    # What follows.

    def load(self, now: float) -> Load:
        """Return the numbers of this moment."""
        if now >= self._recompute_at:
            self._recompute(now)
        return Load(self._free, self._tightening, len(self._in_flight), len(self.endpoints))

    def is_closed(self, service_class: ServiceClass, now: float) -> bool:
        """Say whether the watermark has closed this class (strict classes are never closed)."""
        if now >= self._recompute_at:
            self._recompute(now)
        return self._closed[service_class.rank]

    def concurrency_limit(self, service_class: ServiceClass) -> int:
        """Return the number in flight at which no more of this class are let in; at least 1."""
        return max(1, math.floor(service_class.concurrency * self.limits.max_concurrency))

    def _recompute(self, now: float) -> None:
        """Bring the free ratio and every class's open or closed state up to ``now``."""
        limits = self.limits
        known: list[tuple[Reading, float]] = []
        self._recompute_at = math.inf
        for state in self.endpoints.values():
            age = state.age(now)
            if state.reading is None or age > limits.unknown_after:
                continue
            known.append((state.reading, age))
            # A fresh reading needs no second look before it goes stale; a stale one tightens on,
            # and counts no more from the moment on at which it is unknown.
            self._recompute_at = min(
                self._recompute_at,
                max(now + limits.stale_after / 10, state.read_at + limits.stale_after),
                state.read_at + limits.unknown_after,
            )
        self._free, self._tightening = self._aggregate(known)
        self._update_closed()

    def _aggregate(self, known: Sequence[tuple[Reading, float]]) -> tuple[float | None, float]:
        if not known:
            return None, 1.0
        # Blocks weigh where every page says how many there are; else endpoints weigh the same.
        counted = all(reading.blocks for reading, _ in known)
        weights = [float(reading.blocks or 0) if counted else 1.0 for reading, _ in known]
        total = sum(weights)
        used = sum(w * r.kv_usage for w, (r, _) in zip(weights, known, strict=True)) / total
        # Gauges are fractions of a block count: what lies under a millionth is binary noise, and
        # would put a pool with exactly 8 % free under its mark of 8 %.
        free = round(1.0 - used, 6)
        span = self.limits.unknown_after - self.limits.stale_after
        stale = (max(0.0, age - self.limits.stale_after) / span for _, age in known)
        share = sum(w * s for w, s in zip(weights, stale, strict=True)) / total
        return free, 1.0 + STALE_TIGHTENING * share

    def _update_closed(self) -> None:
        closed_above = False
        for service_class in self.classes:
            rank = service_class.rank
            if self._free is None:
                shut = False
            elif self._free < service_class.close * self._tightening:
                shut = True
            elif self._free > service_class.open * self._tightening:
                shut = False
            else:
                shut = self._closed[rank]
            shut = (shut and not service_class.strict) or closed_above
            self._closed[rank] = closed_above = shut
