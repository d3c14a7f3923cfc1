"""Runs: which controller meets which load, over which seeds, on how many processes.

Rules kept here:

- A run is data, and its scores depend on nothing else. Results come in the order of the runs,
  whichever process was faster.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from random import Random

from extproc.sim.drill import traces
from extproc.sim.drill.baselines import EnginePriority, Slots, Uncontrolled, Watermark
from extproc.sim.drill.clairvoyant import HEADROOMS, Clairvoyant
from extproc.sim.drill.faults import NO_FAULT, Faults
from extproc.sim.drill.lengths import Mix
from extproc.sim.drill.ours import Tidegate
from extproc.sim.drill.policy import Policy
from extproc.sim.drill.score import score
from extproc.sim.drill.setting import Setting
from extproc.sim.drill.workload import Call, Phase, arrivals, bursts, generate
from extproc.sim.drill.world import World

OURS = "tidegate"
CONTROLLERS = ("none", "priority", "slots", "watermark", OURS, "clairvoyant")
SHAPES = ("steady", "bursts", "surge")

SURGE = (40.0, 30.0, 60.0)
"""Seconds of a surge: before, at the peak, after."""
SURGE_CALM, SURGE_PEAK = 0.8, 3.0


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one controller.

    Attributes:
        setting: engines, classes, durations.
        controller: one of `CONTROLLERS`; ``slots:N`` for N slots in all.
        mix: what calls look like; None: as in the trace.
        rate: calls per second; with a trace, calls for each of its calls.
        shape: how the rate moves; one of `SHAPES`.
        seed: of all that is random.
        faults: what goes wrong.
        trace: a file of calls to replay.
    """

    setting: Setting
    controller: str
    mix: Mix | None
    rate: float
    shape: str = "steady"
    seed: int = 1
    faults: Faults = field(default=NO_FAULT)
    trace: Path | None = None


def play(run: Run) -> dict[str, float]:
    """Return the scores of a run."""
    if run.controller == "clairvoyant":
        tries = [play(replace(run, controller=f"clairvoyant:{each}")) for each in HEADROOMS]
        return max(tries, key=lambda scores: scores["goodput"])
    return score(world_of(run).run(), run.setting, relief=_relief(run))


def world_of(run: Run) -> World:
    """Return the world of a run, ready to be played."""
    if run.faults.patience is not None:
        run = replace(run, setting=run.setting.patient(run.faults.patience))
    policies = [make_policy(run) for _ in range(run.faults.gateways)]
    world = World(run.setting, run.faults, policies, calls_of(run), run.seed)
    for policy in policies:
        if isinstance(policy, Clairvoyant):
            policy.enter(world)
    return world


def make_policy(run: Run) -> Policy:
    """Return the controller of a run.

    Raises:
        ValueError: there is none of that name.
    """
    setting = run.setting
    name, _, number = run.controller.partition(":")
    if name == "none":
        return Uncontrolled()
    if name == "priority":
        return EnginePriority()
    if name == "slots" and number:
        waits = (each.max_wait for each in setting.config.classes.values())
        patience = [
            min(wait, terms.first_token) for wait, terms in zip(waits, setting.terms, strict=True)
        ]
        return Slots(int(number), patience)
    if name == "watermark":
        return Watermark(setting.classes(), setting.max_concurrency)
    if name == OURS:
        return Tidegate(setting, run.faults.scrape_interval or setting.scrape_interval)
    if name == "clairvoyant":
        return Clairvoyant(float(number))
    raise ValueError(f"there is no controller {run.controller}: use {', '.join(CONTROLLERS)}")


def surging(setting: Setting) -> Setting:
    """Return the setting for a surge: all of it is measured but the start and the end."""
    before, peak, after = SURGE
    return setting.lasting(
        warm_up=before / 2, measured=before / 2 + peak + after * 0.75, tail=after / 4
    )


def _relief(run: Run) -> float | None:
    return SURGE[0] + SURGE[1] if run.shape == "surge" and run.trace is None else None


def calls_of(run: Run) -> Iterator[Call]:
    """Yield the calls of a run.

    Raises:
        ValueError: it has neither a mix nor a trace.
    """
    setting = run.setting
    audiences = setting.audiences(run.faults.noisy)
    if run.trace is not None:
        tenants = setting.config.tenants
        names = list(setting.config.classes)
        return traces.replay(
            _rows(run.trace, setting.seconds),
            run.rate,
            audiences,
            run.seed,
            longest=setting.engine.longest,
            ranks={name: names.index(each.class_) for name, each in tenants.items()},
        )
    if run.mix is None:
        raise ValueError("a run needs a mix or a trace")
    times = arrivals(run.rate, _phases(run), Random(f"{run.seed}/when"))  # noqa: S311 (no secrets)
    return generate(times, run.mix, audiences, run.seed)


@lru_cache(maxsize=1)
def _rows(path: Path, seconds: float) -> list[traces.Row]:
    return [row for row in traces.read(path) if row.at < seconds]


def _phases(run: Run) -> list[Phase]:
    if run.shape == "surge":
        before, peak, after = SURGE
        return [Phase(before, SURGE_CALM), Phase(peak, SURGE_PEAK), Phase(after, SURGE_CALM)]
    if run.shape == "bursts":
        return bursts(run.setting.seconds)
    return [Phase(run.setting.seconds, 1.0)]


def play_all(
    runs: Sequence[Run], processes: int, progress: Callable[[], None] = lambda: None
) -> list[dict[str, float]]:
    """Play runs on several processes, and return their scores in the order of the runs."""
    if processes == 1 or len(runs) == 1:
        return list(_counting(map(play, runs), progress))
    context = multiprocessing.get_context("spawn")  # a fork would copy the caller's threads
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        return list(_counting(pool.map(play, runs), progress))


def _counting(
    results: Iterable[dict[str, float]], progress: Callable[[], None]
) -> Iterator[dict[str, float]]:
    for result in results:
        progress()
        yield result
