"""The knee: the rate up to which engines without a controller keep their promises.

1.0 times the load is the highest rate of Poisson arrivals at which at least 99 % of all calls are in
time where nothing controls them (first come, first served, least-request balancing). A little above
it the queues of the engines grow without end: the weighted goodput of the uncontrolled engines
peaks at the same rate within a few per cent.

It is found by bisection and kept in a file, under a name that changes with the setting, the mix and
the model's own source.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from statistics import fmean

from extproc.sim import blocks, engine
from extproc.sim.drill import lengths, score, workload, world
from extproc.sim.drill.lengths import Mix
from extproc.sim.drill.runs import Run, play
from extproc.sim.drill.setting import Setting

IN_TIME = 0.99
"""Share of the calls that must be in time."""
PRECISION = 0.01
"""Relative width at which the bisection ends."""
SEEDS = range(9001, 9005)
"""Of the runs at each rate; no drill's own."""
_LOWEST, _HIGHEST = 0.01, 10_000.0


class NoKneeError(Exception):
    """The engines keep their promises at no rate, or at any."""


def find_knee(setting: Setting, mix: Mix) -> float:
    """Return the knee in calls per second, two digits after the point.

    Raises:
        NoKneeError: there is none.
    """
    setting = setting.lasting(warm_up=30.0, measured=120.0, tail=15.0)
    low, high = _LOWEST, 1.0
    while _keeps_up(setting, mix, high):
        low, high = high, high * 2.0
        if high > _HIGHEST:
            raise NoKneeError(f"the engines keep up with {high:.0f} calls per second and more")
    if low == _LOWEST and not _keeps_up(setting, mix, low):
        raise NoKneeError("the engines are too small or too slow for even a single call")
    while high - low > PRECISION * low:
        middle = (low + high) / 2.0
        if _keeps_up(setting, mix, middle):
            low = middle
        else:
            high = middle
    return round(low, 2)


def _keeps_up(setting: Setting, mix: Mix, rate: float) -> bool:
    shares = []
    for seed in SEEDS:
        share = play(Run(setting, "none", mix, rate, seed=seed))["admitted_in_time"]
        if share < 1.0 - len(SEEDS) * (1.0 - IN_TIME):  # the others cannot make up for it
            return False
        shares.append(share)
    return fmean(shares) >= IN_TIME


def cached_knee(setting: Setting, mix: Mix, file: Path | None = None) -> float:
    """Return the knee, from the cache where it stands there."""
    file = file or _cache_file()
    try:
        known = json.loads(file.read_text())
    except (OSError, ValueError):
        known = {}
    key = _key(setting, mix)
    if not isinstance(known.get(key), float):
        known[key] = find_knee(setting, mix)
        file.parent.mkdir(parents=True, exist_ok=True)
        scratch = file.with_suffix(f".{os.getpid()}")
        scratch.write_text(json.dumps(known, indent=1, sort_keys=True))
        scratch.replace(file)
    return float(known[key])


def _cache_file() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "tidegate" / "knees.json"


def _key(setting: Setting, mix: Mix) -> str:
    parts = (setting.engine, setting.endpoints, setting.terms, setting.per_token, mix)
    digest = hashlib.sha256(repr((parts, setting.audiences())).encode())
    for module in (engine, blocks, lengths, workload, world, score):
        digest.update(Path(module.__file__ or "").read_bytes())
    return digest.hexdigest()[:16]
