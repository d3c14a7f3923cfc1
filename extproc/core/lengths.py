"""How long outputs get: quantiles of what is still to come, learned from what has ended.

Rules this module keeps:

* A prediction is conditional: of a sequence that has generated g tokens, only lengths over g count.
* The narrowest history with enough ends in it answers: class and task, then class, then the pool.
  The pool's history starts from a prior, which real ends outweigh.
* Old ends fade. Memory is bounded whatever tasks there are, and a prediction takes O(log bins).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import OrderedDict
from itertools import accumulate, pairwise
from statistics import NormalDist

BINS_PER_OCTAVE = 6
"""Resolution of the histogram: neighbouring bins differ by 12 %."""
LONGEST = 1 << 20
"""Tokens; what is longer counts as this long."""
MEMORY = 500.0
"""Ends after which the weight of one has fallen to 1/e."""
ENOUGH = 20.0
"""Weight of ends (a fresh one weighs 1) from which a history is believed."""
HISTORIES = 512
"""Histories of classes and tasks that are kept; the one unused for longest goes first."""
NEGLIGIBLE = 1e-6
"""Weight of the longest lengths that do not count: the prior's tail has no end."""
BEYOND = 0.25
"""What a sequence longer than any that is remembered is expected to add, relative to its length."""

PRIOR = NormalDist(math.log(150.0), 1.0)
"""The logarithm of a chat answer's length, where nothing is known yet."""
PRIOR_WEIGHT = 10.0

_EDGES = sorted({round(2 ** (i / BINS_PER_OCTAVE)) for i in range(20 * BINS_PER_OCTAVE + 1)})
"""Upper edges of the bins, in tokens: bin i holds the lengths in (edge i-1, edge i]."""


class LengthHistogram:
    """Lengths of recent outputs in logarithmic bins; a new one weighs more than an old one."""

    def __init__(self) -> None:
        self._bins = [0.0] * len(_EDGES)
        self._one = 1.0  # the weight of the next end: it grows where the others would fade
        self._upto: list[float] | None = None

    @classmethod
    def prior(cls) -> LengthHistogram:
        """Return a histogram that holds what may be assumed of chat traffic."""
        made = cls()
        shares = [PRIOR.cdf(math.log(edge)) for edge in _EDGES]
        made._bins = [PRIOR_WEIGHT * (b - a) for a, b in pairwise((0.0, *shares))]
        return made

    @property
    def weight(self) -> float:
        """How many ends this is worth, at most `MEMORY`."""
        return self._cumulative()[-1] / self._one

    def add(self, tokens: int) -> None:
        """Remember an output of this many tokens, at least 1."""
        self._one *= 1.0 + 1.0 / MEMORY
        self._bins[bisect_left(_EDGES, min(max(tokens, 1), LONGEST))] += self._one
        if self._one > 1e9:
            self._bins = [each / self._one for each in self._bins]
            self._one = 1.0
        self._upto = None

    def quantile(self, q: float, over: float) -> float | None:
        """Return the length that a share ``q`` of the lengths > ``over`` does not exceed.

        Inside a bin lengths count as evenly spread. None where no such length is remembered.
        """
        upto = self._cumulative()
        below = self._below(over, upto)
        above = upto[-1] - below
        negligible = NEGLIGIBLE * self._one
        if above <= negligible:
            return None
        target = min(below + q * above, upto[-1] - negligible)
        place = min(bisect_left(upto, target), len(_EDGES) - 1)
        low = _EDGES[place - 1] if place else 0
        inside = upto[place - 1] if place else 0.0
        share = (target - inside) / self._bins[place] if self._bins[place] else 1.0
        return max(over, low + min(1.0, share) * (_EDGES[place] - low))

    def _below(self, tokens: float, upto: list[float]) -> float:
        """Return the weight of the lengths that are not over ``tokens``."""
        place = bisect_left(_EDGES, tokens)
        if place == len(_EDGES):
            return upto[-1]
        low = _EDGES[place - 1] if place else 0
        share = (tokens - low) / (_EDGES[place] - low)
        return (upto[place - 1] if place else 0.0) + share * self._bins[place]

    def _cumulative(self) -> list[float]:
        if self._upto is None:
            self._upto = list(accumulate(self._bins))
        return self._upto


class Lengths:
    """What one pool's outputs are expected to come to."""

    def __init__(self) -> None:
        self._pool = LengthHistogram.prior()
        self._histories: OrderedDict[tuple[str, str | None], LengthHistogram] = OrderedDict()

    def __repr__(self) -> str:
        return f"<Lengths: {self._pool.weight:.0f} ends, {len(self._histories)} histories>"

    def add(self, service_class: str, task: str, tokens: int) -> None:
        """Remember a completed output of this many tokens."""
        self._pool.add(tokens)
        for key in ((service_class, None), (service_class, task)):
            history = self._histories.setdefault(key, LengthHistogram())
            self._histories.move_to_end(key)
            history.add(tokens)
        while len(self._histories) > HISTORIES:
            self._histories.popitem(last=False)

    def left(
        self, service_class: str, task: str, *, q: float, generated: float, limit: int | None
    ) -> float:
        """Return how many tokens a sequence is expected still to generate, 0 at its limit.

        Args:
            service_class: whose lengths these are.
            task: what the call is for, or "".
            q: share of outputs that the prediction covers, 0..1.
            generated: tokens so far.
            limit: tokens at which the engine ends it, or None.
        """
        length = self._quantile(service_class, task, q, generated)
        if limit is not None:
            length = min(float(limit), length)
        return max(0.0, length - generated)

    def _quantile(self, service_class: str, task: str, q: float, generated: float) -> float:
        for key in ((service_class, task), (service_class, None)):
            history = self._histories.get(key)
            if history is not None and history.weight >= ENOUGH:
                length = history.quantile(q, generated)
                if length is not None:
                    return max(length, generated + 1.0)
        length = self._pool.quantile(q, generated)
        if length is None:
            length = generated * (1.0 + BEYOND)
        return max(length, generated + 1.0)


class AdaptiveQuantile:
    """How cautious predictions are: more so after a preemption, less while caution costs calls.

    An engine preempts when more was promised than fits: the share of outputs that a prediction
    covers then rises. It falls only while calls are refused on the strength of predictions,
    because an idle engine that does not preempt proves nothing.
    """

    LOWEST, HIGHEST = 0.1, 0.9
    RISE = 0.25
    """Share of the way to the highest value that each scrape with preemptions goes."""
    FALL = 0.005
    """What a second in which calls were refused takes off: it makes up for one scrape with preemptions
    in 20 s, whose recomputing costs about half a per cent of the tokens."""

    def __init__(self, value: float = 0.5) -> None:
        self.value = value
        self._refused = False
        self._at = -math.inf

    def refused(self) -> None:
        """Note that a prediction refused a call."""
        self._refused = True

    def observe(self, preemptions: int, now: float) -> None:
        """Take what a scrape says: how many preemptions there were since the one before it."""
        passed = min(1.0, now - self._at)
        self._at = now
        if preemptions > 0:
            self.value += self.RISE * (self.HIGHEST - self.value)
        elif self._refused:
            self.value = max(self.LOWEST, self.value - self.FALL * passed)
        self._refused = False
