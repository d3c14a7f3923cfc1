"""Whether a process stays as it is: what its samples over time say of it.

Rule this module keeps: the beginning does not count. Caches fill, code is compiled, arenas are cut.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

SETTLING = 0.25
"""The share of a run that is its beginning."""


@dataclass(frozen=True)
class Trend:
    """How a quantity went after the beginning.

    Attributes:
        first, last: medians of the first and the last third of what counts.
        per_hour: the slope of a line through it (least squares).
    """

    first: float
    last: float
    per_hour: float

    @property
    def growth(self) -> float:
        """By how much it has become more."""
        return self.last - self.first


def trend(samples: Sequence[tuple[float, float]]) -> Trend:
    """Return how samples (seconds, value), in their order, went.

    Raises:
        ValueError: there are less than a dozen.
    """
    if len(samples) < 12:
        raise ValueError(f"{len(samples)} samples tell nothing")
    counted = samples[round(len(samples) * SETTLING) :]
    third = len(counted) // 3
    values = [value for _, value in counted]
    line = statistics.linear_regression([at for at, _ in counted], values)
    first, last = statistics.median(values[:third]), statistics.median(values[-third:])
    return Trend(first, last, 3600 * line.slope)
