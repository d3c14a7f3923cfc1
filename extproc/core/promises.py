"""What one endpoint has promised, and the highest KV usage that the promises lead to.

Rules this module keeps:

* A promise is made once and withdrawn once. Nothing here ends one because time has passed.
* All sequences of an endpoint advance at one pace: the endpoint's token clock V, in tokens per
  sequence. V stands still while nobody asks; it never runs backwards.
* The peak depends on the promises only, not on the time, so it is computed when they change.

The peak. A sequence i with ``current_i`` tokens in the cache and ``left_i`` to come grows until it
ends, so usage is highest at the moment one of them ends::

    peak = max_i ( Σ_{j≤i} current_j + i · left_i )          sorted by left, descending

With ``born_i`` = V when it was admitted, its size on arrival ``size_i`` and its predicted length
L̂_i, ``current_i = size_i + V − born_i`` and ``left_i = born_i + L̂_i − V``. With
``base_i = size_i − born_i`` and ``finish_i = born_i + L̂_i``, V cancels::

    peak = max_i ( Σ_{j≤i} base_j + i · finish_i )           sorted by finish, descending

A call that wants w choices is w sequences of the same size: it counts w times.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator
from itertools import accumulate
from operator import add

import msgspec

from extproc.core.classes import ServiceClass
from extproc.core.tokens import PromptParts

GRACE = 16.0
"""Tokens, or share of its limit, that a sequence at its limit is taken to be from its end."""


class Demand(msgspec.Struct, frozen=True, gc=False):
    """What a call wants of an engine.

    Attributes:
        service_class: its class.
        task: what it is for, or "".
        prompt: estimated tokens of the prompt.
        max_output: tokens of each choice at which the engine ends it, or None; 0 generates nothing.
        choices: how many texts are generated.
        parts: what the prompt is made of, where tokens can be learned from it.
    """

    service_class: ServiceClass
    task: str = ""
    prompt: int = 1
    max_output: int | None = None
    choices: int = 1
    parts: PromptParts | None = None


class Promise(msgspec.Struct, eq=False, gc=False):
    """An exchange that was let in.

    Attributes:
        exchange: its id.
        demand: what it wants.
        endpoint: who is thought to serve it, or None.
        admitted_at: the clock's time, in seconds.
        number: order of admission in the pool.
        size: tokens that each of its sequences takes on arrival.
        born: reading of the endpoint's token clock when it had generated nothing; moved where a
            sequence turns out to be behind the clock.
        finish: reading at which it is predicted to end.
        since: ``born`` as it was first.
        first: the first prediction of its length, in tokens.
    """

    exchange: str
    demand: Demand
    endpoint: str | None
    admitted_at: float
    number: int
    size: float = 0.0
    born: float = 0.0
    finish: float = 0.0
    since: float = 0.0
    first: float = 0.0


Predict = Callable[[Demand, float], float]
"""Tokens still to come of a sequence that has generated so many; see `lengths.Lengths.left`."""


class TokenClock:
    """V: tokens that each sequence of an endpoint has generated since the clock was started."""

    def __init__(self, pace: float) -> None:
        self.pace = pace
        self._tokens = 0.0
        self._at = -math.inf

    def read(self, now: float) -> float:
        """Return V at ``now``; a time before the last one that was asked for counts as that."""
        if now > self._at:
            if self._at > -math.inf:
                self._tokens += self.pace * (now - self._at)
            self._at = now
        return self._tokens

    def restart(self, now: float) -> None:
        """Go back to 0, so that numbers stay small; only while nothing refers to the clock."""
        self._tokens, self._at = 0.0, max(now, self._at)


class Promises:
    """The promises of one endpoint."""

    def __init__(self, predict: Predict, pace: float) -> None:
        self.clock = TokenClock(pace)
        self._predict = predict
        self._order: list[tuple[float, int, Promise]] = []  # by finish, descending
        self._fresh = False
        self._finishes: list[float] = []
        self._weights: list[int] = [0]  # of the first i promises, and so on
        self._bases: list[float] = [0.0]
        self._tops: list[float] = []
        self._highest: list[float] = [0.0]
        self._prompts = 0

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[Promise]:
        return (promise for _, _, promise in self._order)

    @property
    def sequences(self) -> int:
        """How many sequences the promises are."""
        self._refresh()
        return self._weights[-1]

    @property
    def peak(self) -> float:
        """Tokens at the worst moment to come; 0 where nothing is promised."""
        self._refresh()
        return self._highest[-1]

    @property
    def mean_prompt(self) -> float:
        """Tokens of the average sequence's prompt; 0 where nothing is promised."""
        return self._prompts / self.sequences if self._order else 0.0

    def current(self, now: float) -> float:
        """Return the tokens that all promises take now, had each been started at once."""
        self._refresh()
        return max(0.0, self._bases[-1] + self._weights[-1] * self.clock.read(now))

    def generated(self, promise: Promise, now: float) -> float:
        """Return how many tokens a promise's sequences have generated, each."""
        return max(0.0, self.clock.read(now) - promise.born)

    def peak_with(self, demand: Demand, size: float, left: float, now: float) -> float:
        """Return the peak if this demand, with so many tokens left to generate, came on top."""
        self._refresh()
        weight, v = demand.choices, self.clock.read(now)
        finish, base = v + left, weight * (size - v)
        place = bisect_right(self._order, (-finish, math.inf))
        top = self._bases[place] + base + (self._weights[place] + weight) * finish
        later = self._finishes[place:]
        if weight > 1:
            later = [weight * each for each in later]
        shorter = max(map(add, self._tops[place:], later), default=-math.inf)
        return max(self._highest[place], top, shorter + base)

    def add(
        self,
        promise: Promise,
        *,
        size: float,
        generated: float,
        now: float,
        left: float | None = None,
    ) -> None:
        """Take a promise on, of which so many tokens are generated already.

        ``left``: tokens still to come, where they have been predicted.
        """
        if not self._order:
            self.clock.restart(now)
        promise.size = size
        promise.since = promise.born = self.clock.read(now) - generated
        if left is None:
            left = self._predict(promise.demand, generated)
        promise.first = promise.first or generated + left
        promise.finish = promise.born + generated + max(1.0, left)
        self._prompts += promise.demand.prompt * promise.demand.choices
        self._insert(promise)

    def withdraw(self, promise: Promise) -> None:
        """Let go of a promise that is in here."""
        self._remove(promise)
        self._prompts -= promise.demand.prompt * promise.demand.choices

    def renew(self, now: float) -> None:
        """Predict anew what has outlived its prediction."""
        v = self.clock.read(now)
        while self._order and self._order[-1][2].finish <= v:
            promise = self._order[-1][2]
            self._remove(promise)
            limit = promise.demand.max_output
            left = self._predict(promise.demand, v - promise.born)
            if limit is not None and left < 1.0:
                # It should have ended: our clock is ahead of it, or its end is late. It keeps the
                # room that it may take at most, and will be looked at again soon.
                left = max(GRACE, limit / GRACE)
                promise.born = v - max(0.0, limit - left)
            promise.finish = v + max(1.0, left)
            self._insert(promise)

    def overrun(self, promise: Promise, now: float) -> float:
        """Return how many times the length first predicted for it a promise has lasted."""
        return (self.clock.read(now) - promise.since) / max(1.0, promise.first)

    def _insert(self, promise: Promise) -> None:
        insort(self._order, (-promise.finish, promise.number, promise))
        self._fresh = False

    def _remove(self, promise: Promise) -> None:
        del self._order[bisect_left(self._order, (-promise.finish, promise.number))]
        self._fresh = False

    def _refresh(self) -> None:
        """Bring the sums over the promises up to date."""
        if self._fresh:
            return
        ordered = [promise for _, _, promise in self._order]
        weights = [promise.demand.choices for promise in ordered]
        bases = [w * (p.size - p.born) for w, p in zip(weights, ordered, strict=True)]
        self._finishes = [promise.finish for promise in ordered]
        self._weights = list(accumulate(weights, initial=0))
        self._bases = list(accumulate(bases, initial=0.0))
        sums = zip(self._bases[1:], self._weights[1:], self._finishes, strict=True)
        self._tops = [base + weight * finish for base, weight, finish in sums]
        self._highest = list(accumulate(self._tops, max, initial=0.0))
        self._fresh = True
