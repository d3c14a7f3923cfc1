"""What outputs usually come to, and how strongly a new one speaks for a rise.

Rules this module keeps:

* Lengths are taken as log-normal: what is averaged is their logarithm, so that one huge output moves
  little. What lies under `FLOOR` counts as `FLOOR`: nobody is hurt by 5 tokens that become 20.
* The evidence for "risen by the factor f" against "as ever" is the logarithm of the likelihood ratio
  of a length, with d = ln f, and μ and σ of the logarithms::

      llr = d / σ² · (ln length − μ − d / 2)

  Its running sum, kept at 0 or more, is Page's CUSUM (Biometrika 41, 1954). Of all tests it is the
  fastest at the same rate of false alarms (Moustakides, Annals of Statistics 14, 1986), and with the
  threshold ln γ at least γ calls lie between two false alarms (Lorden, Annals of Mathematical
  Statistics 42, 1971).
* One call says no more than a bounded share of what is needed, whatever its length: an outlier alone
  decides nothing.
* A baseline follows a slow drift and forgets: a sudden rise is what stands out from it.
"""

from __future__ import annotations

import math

FLOOR = 32
"""Tokens."""
ENOUGH = 50
"""Outputs from which a baseline is believed: with fewer, the errors of μ and σ dominate a CUSUM
(Jensen et al., Effects of Parameter Estimation on Control Chart Properties, J. Quality Technology 38,
2006)."""
MEMORY = 500
"""Outputs after which the weight of one has fallen to 1/e; as in `extproc.core.lengths`."""
LEAST_SPREAD = 0.25
"""σ of the logarithms at the least: a task that always answers alike may vary by a quarter."""
OUTLIER = 3.0
"""In σ; what lies further off moves the baseline as if it lay there."""


def log_length(tokens: int) -> float:
    """Return the logarithm of a length as it counts here."""
    return math.log(max(FLOOR, tokens))


class Baseline:
    """Mean μ and variance σ² of the logarithms of lengths, exponentially weighted."""

    __slots__ = ("_mean", "_variance", "count")

    def __init__(self) -> None:
        self.count = 0
        self._mean = 0.0
        self._variance = 0.0

    def __repr__(self) -> str:
        return f"<Baseline: {self.count} outputs, {self.average:.0f} tokens on average>"

    @property
    def learned(self) -> bool:
        """Whether enough outputs were seen."""
        return self.count >= ENOUGH

    @property
    def average(self) -> float:
        """The average length in tokens: exp(μ + σ²/2) of a log-normal distribution."""
        return math.exp(self._mean + self._spread() ** 2 / 2)

    def add(self, length: float) -> None:
        """Learn a length, given as `log_length`; with a falling gain first, then a constant one."""
        self.count += 1
        away = length - self._mean
        if self.learned:
            most = OUTLIER * self._spread()
            away = min(most, max(-most, away))
        gain = max(1.0 / self.count, 1.0 / MEMORY)
        self._mean += gain * away
        # West, Updating Mean and Variance Estimates, CACM 22, 1979, with a constant gain.
        self._variance = (1.0 - gain) * (self._variance + gain * away * away)

    def evidence(self, length: float, rise: float, most: float) -> float:
        """Return the log likelihood ratio of a rise by the factor ``rise``, within ±``most``."""
        step = math.log(rise)
        ratio = step / self._spread() ** 2 * (length - self._mean - step / 2)
        return min(most, max(-most, ratio))

    def factor(self, length: float) -> float:
        """Return by what factor a length, given as `log_length`, is over the usual one."""
        return math.exp(length - self._mean)

    def _spread(self) -> float:
        return max(LEAST_SPREAD, math.sqrt(self._variance))
