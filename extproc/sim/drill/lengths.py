"""How long prompts and outputs are: distributions, and the mixes made of them.

Rules kept here:

- A distribution is a map from a standard normal number to tokens, so that prompt and output can be
  correlated (a Gaussian copula) and equal seeds give equal calls whatever the distribution.
- Nothing is read from files: what was measured on published traces stands here as numbers.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from statistics import NormalDist
from types import MappingProxyType
from typing import Protocol

_NORMAL = NormalDist()


class Distribution(Protocol):
    """Lengths in tokens."""

    def at(self, z: float) -> float:
        """Return the length that belongs to a draw ``z`` of the standard normal distribution."""
        ...


@dataclass(frozen=True, slots=True)
class LogNormal:
    """A lognormal length.

    Attributes:
        mean: tokens.
        cv: standard deviation over mean. The default is that of an exponential distribution; on the
            traces below it is between 0.8 and 2.1.
    """

    mean: float
    cv: float = 1.0

    def at(self, z: float) -> float:
        """See `Distribution`."""
        variance = math.log1p(self.cv * self.cv)
        return math.exp(math.log(self.mean) - variance / 2 + math.sqrt(variance) * z)


_LEVELS = (0.0, 0.01, 0.05, 0.10, 0.25, 0.50, 0.75, 0.90, 0.95, 0.99, 1.0)


@dataclass(frozen=True, slots=True)
class Percentiles:
    """A measured length: log-linear between its 0, 1, 5, 10, 25, 50, 75, 90, 95, 99 and 100 %."""

    tokens: tuple[int, int, int, int, int, int, int, int, int, int, int]

    def at(self, z: float) -> float:
        """See `Distribution`."""
        level = _NORMAL.cdf(z)
        above = min(bisect_right(_LEVELS, level), len(_LEVELS) - 1)
        low, high = _LEVELS[above - 1], _LEVELS[above]
        share = (level - low) / (high - low)
        shorter, longer = self.tokens[above - 1], self.tokens[above]
        return math.exp(math.log(shorter) * (1.0 - share) + math.log(longer) * share)


@dataclass(frozen=True, slots=True)
class Mix:
    """What calls look like.

    Attributes:
        prompt, output: their lengths.
        correlation: between the two, of the underlying normal numbers.
    """

    prompt: Distribution
    output: Distribution
    correlation: float = 0.0

    def draw(self, rng: Random) -> tuple[int, int]:
        """Return prompt and output of one call, each at least 1 token."""
        first, second = rng.gauss(0.0, 1.0), rng.gauss(0.0, 1.0)
        rho = self.correlation
        other = rho * first + math.sqrt(1.0 - rho * rho) * second
        return max(1, round(self.prompt.at(first))), max(1, round(self.output.at(other)))


MIXES: Mapping[str, Mix] = MappingProxyType(
    {
        "balanced": Mix(LogNormal(400), LogNormal(160)),
        "decode-heavy": Mix(LogNormal(150), LogNormal(500)),
        "long-prompt": Mix(LogNormal(1500), LogNormal(80)),
        # Percentiles and rank correlations of the AzureLLMInferenceTrace conv (19,366 calls) and
        # code (8,819 calls) of 2023-11-11, github.com/Azure/AzurePublicDataset, CC-BY; Patel et
        # al., "Splitwise", ISCA 2024.
        "azure-conv": Mix(
            Percentiles((2, 29, 181, 207, 396, 1020, 1189, 2734, 4083, 4142, 14050)),
            Percentiles((7, 16, 41, 54, 85, 129, 395, 424, 451, 601, 1000)),
            0.07,
        ),
        "azure-code": Mix(
            Percentiles((3, 17, 75, 147, 578, 1469, 2745, 5186, 7302, 7436, 7437)),
            Percentiles((6, 6, 6, 7, 9, 13, 24, 55, 90, 252, 1899)),
            -0.02,
        ),
        # Percentiles and rank correlation of 1,500 calls of 27 clients of the Chatbot Arena trace
        # in the artifact of Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024.
        "vtc-arena": Mix(
            Percentiles((2, 2, 2, 5, 13, 40, 161, 432, 653, 902, 1021)),
            Percentiles((2, 3, 10, 18, 62, 211, 457, 513, 513, 785, 977)),
            0.26,
        ),
    }
)
