"""Figures with their floors and bars.

Rules this module keeps:

* A floor is measured in the same run as what stands on it, round by round in turn; a ratio is the
  median of the rounds' ratios, so a machine that drifts moves both and the ratio little.
* A missed bar is said, never hidden; a benchmark is not a test and fails nothing.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum


class Against(Enum):
    """What a bar is held to."""

    VALUE = "value"
    RATIO = "ratio"
    ADDED = "added"


@dataclass(frozen=True, slots=True)
class Bar:
    """The most that a figure may be."""

    limit: float
    against: Against


@dataclass(frozen=True, slots=True)
class Figure:
    """A quantity measured in several rounds.

    Attributes:
        name: what was measured.
        unit: of the values, the floors, and a bar on them.
        values: one for each round.
        floor_name: what the floor is, or "".
        floors: its values in the same rounds; empty without a floor.
        bar: what must hold, or None.
    """

    name: str
    unit: str
    values: Sequence[float]
    floor_name: str = ""
    floors: Sequence[float] = ()
    bar: Bar | None = None

    @property
    def value(self) -> float:
        """The median round."""
        return statistics.median(self.values)

    @property
    def spread(self) -> tuple[float, float]:
        """The lowest and the highest round."""
        return min(self.values), max(self.values)

    @property
    def floor(self) -> float | None:
        """The floor's median round."""
        return statistics.median(self.floors) if self.floors else None

    @property
    def ratio(self) -> float | None:
        """The median of the rounds' ratios to the floor; None where the floor is too low to see."""
        if not all(self.floors):
            return None
        return self._paired(lambda value, floor: value / floor)

    @property
    def added(self) -> float | None:
        """The median of the rounds' differences from the floor."""
        return self._paired(lambda value, floor: value - floor)

    @property
    def met(self) -> bool | None:
        """Whether the bar is kept; None where there is none."""
        if self.bar is None:
            return None
        held = {Against.VALUE: self.value, Against.RATIO: self.ratio, Against.ADDED: self.added}
        measured = held[self.bar.against]
        return measured is not None and measured <= self.bar.limit

    def _paired(self, compare: Callable[[float, float], float]) -> float | None:
        if not self.floors:
            return None
        pairs = zip(self.values, self.floors, strict=True)
        return statistics.median(compare(value, floor) for value, floor in pairs)
