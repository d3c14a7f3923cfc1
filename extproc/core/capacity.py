"""The books of one pool: where a call fits, which classes are closed, what is in flight.

Rules this module keeps:

* A missing, failed or old reading is never taken for an idle engine.
* Readings are fresh, stale or unknown by their age. With a stale one, own accounting goes on and the
  watermarks rise linearly to twice their value; with an unknown one they stay there. Where no
  capacity was ever known, only concurrency limits the pool.
* Every class is judged at every change, not when a call of it comes: so a class cannot stay open
  because nobody asked while the pool was full. Where one is closed, all under it are closed too
  (`watermarks`).
* What is reserved is released once, whoever says so and however often. No clock ends it: what the
  engines provably have no more is let go (`lost`), nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from extproc.core.classes import ServiceClass
from extproc.core.endpoint import PACE, Endpoint, Promised, Timing
from extproc.core.lengths import AdaptiveQuantile, Lengths
from extproc.core.lost import LostEnds
from extproc.core.outcomes import End, Outcome
from extproc.core.placement import (
    NO_MARK,
    Placement,
    Room,
    Shortage,
    Usable,
    least_busy,
    pick,
    spread,
    together,
    usable,
)
from extproc.core.promises import Demand, Promise
from extproc.core.readings import Freshness, Reading
from extproc.core.reasons import Reason
from extproc.core.standing import Standing
from extproc.core.tokens import TokenEstimator
from extproc.core.watermarks import Watermarks

__all__ = [
    "Demand",
    "Endpoint",
    "Freshness",
    "Load",
    "Placement",
    "Pool",
    "PoolLimits",
    "Reading",
    "Shortage",
]


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """What the configuration says of a pool; times in seconds.

    Attributes:
        max_concurrency: exchanges that may be in flight.
        stale_after, unknown_after: ages of a reading.
        pick: we choose the endpoint, not Envoy.
        blocks, block_size: of one endpoint's KV cache, for engines whose pages do not say.
    """

    max_concurrency: int
    stale_after: float
    unknown_after: float
    pick: bool = False
    blocks: int | None = None
    block_size: int | None = None


class Load(msgspec.Struct, frozen=True, gc=False):
    """The numbers that a capacity decision rests on.

    Attributes:
        free: observed free ratio of the pool, 0..1, or None where nothing is known.
        tightening: factor >= 1 on the watermarks, for readings that are stale.
        in_flight: exchanges that hold capacity.
        endpoints: how many endpoints are known.
        predicted: free ratio after everything promised, as it counts; under 0 where more is
            promised than fits; None where no capacity is known.
    """

    free: float | None
    tightening: float
    in_flight: int
    endpoints: int
    predicted: float | None = None


_NOTHING = Promised()


class Pool:
    """The books of the endpoints that serve one model. One writer: the event loop.

    ``elsewhere`` is what other Tidegates have in flight, as last heard.
    """

    def __init__(self, name: str, limits: PoolLimits, classes: Sequence[ServiceClass]) -> None:
        self.name = name
        self.limits = limits
        self.classes = tuple(classes)
        self.endpoints: dict[str, Endpoint] = {}
        self.elsewhere = 0
        self.lengths = Lengths()
        self.quantile = AdaptiveQuantile()
        self.tokens = TokenEstimator()
        self._timing = Timing(limits.stale_after, limits.unknown_after)
        self._promises: dict[str, Promise] = {}
        self._admitted = 0
        self._watermarks = Watermarks(self.classes)
        self._lost = LostEnds()
        self._usable: dict[str, Usable | None] = {}
        self._known: list[Usable] | None = None
        self._room: Room | None = None
        self._observed: float | None = None
        self._tightening = 1.0
        self._survey_at = math.inf
        self._dirty = False
        self._freed = False

    def __repr__(self) -> str:
        closed = [each.name for each in self.classes if self._watermarks.closed(each)]
        return (
            f"<Pool {self.name}: {len(self.endpoints)} endpoints, "
            f"{len(self._promises)}/{self.limits.max_concurrency} in flight, closed {closed}>"
        )

    def adjust(self, limits: PoolLimits, classes: Sequence[ServiceClass]) -> None:
        """Judge by other thresholds from now on; the classes' names and ranks stay."""
        self.limits, self.classes = limits, tuple(classes)
        self._watermarks.adjust(self.classes)
        self._dirty = self._freed = True

    # What the engines say.

    def join(self, endpoint: str) -> None:
        """Add an endpoint; nothing is known of it yet but what the configuration says."""
        if endpoint not in self.endpoints:
            self.endpoints[endpoint] = Endpoint(
                endpoint,
                self._timing,
                self._predict,
                blocks=self.limits.blocks,
                block_size=self.limits.block_size,
            )
            self._changed(endpoint, freed=True)

    def leave(self, endpoint: str, now: float) -> None:
        """Forget an endpoint and what it said; its exchanges stay in flight until they end."""
        gone = self.endpoints.pop(endpoint, None)
        if gone is not None:
            for promise in gone.promises:
                promise.endpoint = None
            self._changed(endpoint, freed=True)
            self._survey_at = now
            self._refresh(now)

    def sending(self, endpoint: str, now: float) -> None:
        """A scrape is about to be sent: what it says will be held against this moment's books."""
        state = self.endpoints.get(endpoint)
        if state is not None:
            state.sending(now)

    def observe(self, endpoint: str, reading: Reading, *, read_at: float, now: float) -> None:
        """Take a reading that was asked for at ``read_at``; a late answer never replaces a newer one.

        Exchanges that no engine has any more are let go; see `lost`. If one lives after all, it
        counts as bias.
        """
        state = self.endpoints.get(endpoint)
        if state is None or read_at < state.read_at:
            return
        self.quantile.observe(state.observe(reading, read_at, now), now)
        for promise in self._lost.scraped(self.endpoints.values(), now):
            self.release(promise.exchange)
        self._changed(endpoint, freed=True)
        self._survey(now)
        self._refresh(now)

    def report(self, endpoint: str, kv_usage: float, waiting: int, now: float) -> None:
        """Take what an engine said of its load beside an answer; see `Endpoint.report`."""
        state = self.endpoints.get(endpoint)
        if state is not None and state.report(kv_usage, waiting, now):
            self._changed(endpoint, freed=False)
            self._survey(now)
            self._refresh(now)

    def fail(self, endpoint: str, problem: str) -> None:
        """Note that an endpoint could not be read; its last reading ages on."""
        state = self.endpoints.get(endpoint)
        if state is not None:
            state.problem = problem
            self._changed(endpoint, freed=False)
            self._survey_at = -math.inf

    def freshness(self, endpoint: str, now: float) -> Freshness:
        """Return how far the endpoint's reading can be trusted now."""
        return self.endpoints[endpoint].freshness(now)

    # What is in flight.

    @property
    def in_flight(self) -> int:
        """Return how many exchanges hold capacity."""
        return len(self._promises)

    def promises(self) -> Iterator[Promise]:
        """Yield what is in flight, in the order of admission."""
        yield from self._promises.values()

    def generated(self, promise: Promise, now: float) -> float:
        """Return how many tokens each choice of an exchange has probably generated."""
        state = self.endpoints.get(promise.endpoint or "")
        return 0.0 if state is None else state.promises.generated(promise, now)

    def shared(self, in_flight: int, promised: Mapping[str, Promised]) -> None:
        """Hear what other Tidegates have in flight and have promised, by endpoint; nothing: none."""
        self.elsewhere = in_flight
        for name, state in self.endpoints.items():
            theirs = promised.get(name, _NOTHING)
            if state.elsewhere != theirs:
                state.elsewhere = theirs
                self._changed(name, freed=True)

    def reserve(
        self,
        exchange: str,
        demand: Demand,
        endpoint: str | None,
        now: float,
        left: float | None = None,
    ) -> None:
        """Take an exchange in, where `place` put it; once, however often it is said.

        ``left``: tokens that each of its sequences will probably generate, where `place` has told.
        """
        if exchange in self._promises:
            return
        self._admitted += 1
        promise = Promise(exchange, demand, None, now, self._admitted)
        self._promises[exchange] = promise
        state = self.endpoints.get(endpoint or "")
        if state is not None:
            state.dispatch(demand, now)
            self._book(promise, state, 0.0, left, now)

    def moved(self, exchange: str, endpoint: str, now: float) -> None:
        """Correct the books: this endpoint serves the exchange, whatever was planned.

        One that is not known by this name (it was configured by a host name) corrects nothing.
        """
        promise, state = self._promises.get(exchange), self.endpoints.get(endpoint)
        if promise is None or state is None or promise.endpoint == endpoint:
            return
        generated = self.generated(promise, now)
        self._unbook(promise)
        self._book(promise, state, generated, None, now)

    def release(self, exchange: str) -> Promise | None:
        """Count an exchange out and return what it held; None, and no harm, where it is not in."""
        promise = self._promises.pop(exchange, None)
        if promise is not None:
            self._unbook(promise)
        return promise

    def promise(self, exchange: str) -> Promise | None:
        """Return what an exchange holds, or None where it is not in."""
        return self._promises.get(exchange)

    def learn(self, promise: Promise, end: End) -> None:
        """Learn from how an exchange ended: tokens, lengths, pace, and whether a server is down."""
        demand, state = promise.demand, self.endpoints.get(promise.endpoint or "")
        if demand.parts is not None and end.prompt_tokens is not None:
            self.tokens.observe(demand.parts, end.prompt_tokens)
        if end.outcome is Outcome.COMPLETED and end.completion_tokens:
            each = max(1, round(end.completion_tokens / demand.choices))
            self.lengths.add(demand.service_class.name, demand.task, each)
            if state is not None:
                state.completed(each, end.seconds)
        elif end.outcome is Outcome.ENGINE_ERROR and state is not None:
            self._suspect(state)

    def _suspect(self, state: Endpoint) -> None:
        """An exchange failed here: where scrapes fail too, the endpoint is down until one works."""
        state.failures += 1
        self._changed(state.name, freed=False)
        self._survey_at = -math.inf

    def _book(
        self, promise: Promise, state: Endpoint, generated: float, left: float | None, now: float
    ) -> None:
        size = state.size(promise.demand)
        state.promises.add(promise, size=size, generated=generated, left=left, now=now)
        promise.endpoint = state.name
        self._changed(state.name, freed=False)

    def _unbook(self, promise: Promise) -> None:
        state = self.endpoints.get(promise.endpoint or "")
        if state is not None:
            state.withdraw(promise)
            self._changed(state.name, freed=True)

    def _predict(self, demand: Demand, generated: float) -> float:
        return self.lengths.left(
            demand.service_class.name,
            demand.task,
            q=self.quantile.value,
            generated=generated,
            limit=demand.max_output,
        )

    # Where a call fits.

    def place(self, demand: Demand, now: float, spare: float = 0.0) -> Placement | Shortage:
        """Return where a call fits, or why it does not.

        Nothing is reserved; but where there is no room, the classes under this one are closed.

        A strict class fits as long as there is room at all. Others must leave their watermark free,
        find few enough prompts before them, and few enough exchanges in flight. ``spare`` is the
        share of the pool, 0..1, that they must leave free besides.
        """
        if not self.endpoints:
            return Shortage(Reason.NO_ENDPOINT)
        self._refresh(now)
        service_class = demand.service_class
        if service_class.strict:
            return self._fit(demand, 0.0, now)
        room = self._room
        if room is not None:
            unmet = self._watermarks.unmet(service_class, room.ratio)
            if unmet is not None:
                return room.shortage(unmet, room.free)
        limit = self.concurrency_limit(service_class)
        limit = max(1, limit - math.floor(spare * self.limits.max_concurrency))
        in_flight = self.in_flight + self.elsewhere
        if in_flight >= limit:
            return Shortage(Reason.CONCURRENCY, limit, in_flight)
        return self._fit(demand, service_class.close + spare, now)

    def standing(self, service_class: ServiceClass, now: float, spare: float = 0.0) -> Standing:
        """Return what `place` judges a call of this class by."""
        self._refresh(now)
        room, unmet = self._room, None
        if room is not None and not service_class.strict:
            unmet = self._watermarks.unmet(service_class, room.ratio)
        return Standing(
            len(self.endpoints),
            self.in_flight,
            self.limits.max_concurrency,
            spare,
            None if room is None else room.free,
            None if room is None else room.observed,
            1.0 if room is None else room.tightening,
            1.0 if room is None or room.account is None else room.account.own,
            unmet,
        )

    def output(self, demand: Demand) -> float:
        """Return how many tokens a call will probably generate, all choices together."""
        return demand.choices * self._predict(demand, 0.0)

    def output_in(self, promise: Promise, seconds: float) -> float:
        """Return how many tokens an exchange has probably generated in so much time, all choices."""
        state = self.endpoints.get(promise.endpoint or "")
        pace = PACE if state is None else state.promises.clock.pace
        return promise.demand.choices * pace * seconds

    def squeeze(self, demand: Demand, now: float) -> Placement:
        """Return where a call fits best, though it may fit nowhere: the engine's queue takes it."""
        self._refresh(now)
        found = self._fit(demand, NO_MARK, now) if self.endpoints else None
        return found if isinstance(found, Placement) else Placement(None, False, None, 0.0)

    def _fit(self, demand: Demand, mark: float, now: float) -> Placement | Shortage:
        known, room, left = self._look(now), self._room, self._predict(demand, 0.0)
        if room is None:
            return Placement(least_busy(tuple(self.endpoints.values())).name, False, None, left)
        if self.limits.pick:
            found = pick(demand, left, mark, known, now)
        else:
            found = spread(demand, left, mark, room, [each.state for each in known], now)
        if isinstance(found, Shortage):
            if found.reason is Reason.KV_DEMAND:
                self.quantile.refused()
            capacities = [each.state.capacity or math.inf for each in known]
            most = max(capacities) if self.limits.pick else sum(capacities)
            # What would not fit into empty engines takes nobody's place.
            if demand.choices * (demand.prompt + left) <= (1.0 - mark) * most:
                self._watermarks.refused(demand.service_class, room.ratio)
        return found

    # What follows.

    def load(self, now: float) -> Load:
        """Return the numbers of this moment."""
        self._refresh(now)
        predicted = None if self._room is None else self._room.free
        return Load(
            self._observed, self._tightening, self.in_flight, len(self.endpoints), predicted
        )

    def is_closed(self, service_class: ServiceClass, now: float) -> bool:
        """Say whether too little is free for this class (strict classes are never closed)."""
        self._refresh(now)
        return self._watermarks.closed(service_class)

    def concurrency_limit(self, service_class: ServiceClass) -> int:
        """Return the number in flight at which no more of this class are let in; at least 1."""
        return max(1, math.floor(service_class.concurrency * self.limits.max_concurrency))

    def _changed(self, endpoint: str, *, freed: bool) -> None:
        """Note that an endpoint's books changed, and whether there may be more room now."""
        self._usable.pop(endpoint, None)
        self._known = None
        self._dirty = True
        self._freed = self._freed or freed

    def _refresh(self, now: float) -> None:
        """Judge again where something came or ended, or a reading has aged.

        Not at the change itself: nobody sees what classes were in between two questions.
        """
        if now >= self._survey_at:
            self._usable.clear()
            self._known = None
            self._survey(now)
            self._dirty = self._freed = True
        if self._dirty:
            may_open, self._dirty, self._freed = self._freed, False, False
            self._judge(now, may_open=may_open)

    def _survey(self, now: float) -> None:
        """Look at all readings: what they say together, and when their age must be looked at."""
        self._survey_at = math.inf
        for state in self.endpoints.values():
            if state.freshness(now) is not Freshness.UNKNOWN:
                # A fresh reading needs no second look before it goes stale; a stale one tightens on,
                # and counts no more from the moment on at which it is unknown.
                step = self.limits.stale_after
                soon = max(now + step / 10, state.read_at + step)
                unknown = state.read_at + self.limits.unknown_after
                self._survey_at = min(self._survey_at, soon, unknown)
        rooms = [each.room for each in self._look(now)]
        whole = together(rooms) if rooms else None
        self._observed = None if whole is None else whole.observed
        self._tightening = 1.0 if whole is None else whole.tightening

    def _judge(self, now: float, *, may_open: bool) -> None:
        """Bring what classes are judged by, and their state, up to date."""
        rooms = [each.room for each in self._look(now)]
        if not rooms:
            self._room = None
        elif self.limits.pick:
            self._room = max(rooms, key=lambda room: room.ratio)
        else:
            self._room = together(rooms)
        room = self._room
        self._watermarks.judge(
            None if room is None else room.ratio,
            now,
            may_open=may_open,
            own=1.0 if room is None or room.account is None else room.account.own,
        )

    def _look(self, now: float) -> list[Usable]:
        """Return the endpoints of which something is known.

        What is known from long ago counts only where nothing newer is known of any.
        """
        if self._known is not None:
            return self._known
        cache = self._usable
        for name, state in self.endpoints.items():
            if name not in cache:
                cache[name] = usable(state, now)
        found = [each for each in cache.values() if each is not None]
        self._known = [each for each in found if each.tier < 2] or found
        return self._known
