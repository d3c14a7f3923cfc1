"""Means over seeds, with bounds of confidence."""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import fmean, stdev
from typing import NamedTuple

# Student's t at 97.5 %, for 1, 2, … degrees of freedom.
_T = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


class Mean(NamedTuple):
    """A mean and half the width of its 95 % interval (Student's t); NaN where there is none."""

    value: float
    half: float


def mean(values: Iterable[float]) -> Mean:
    """Return the mean of what is a number, with its bounds."""
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return Mean(math.nan, math.nan)
    if len(known) == 1:
        return Mean(known[0], math.nan)
    freedom = len(known) - 1
    t = _T[freedom - 1] if freedom <= len(_T) else 1.96 + 2.4 / freedom
    return Mean(fmean(known), t * stdev(known) / math.sqrt(len(known)))
