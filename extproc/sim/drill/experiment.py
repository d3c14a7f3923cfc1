"""An experiment: cells to be compared, each played over the same seeds.

Rules kept here:

- Controllers are compared on equal calls: ratios are taken seed by seed, then averaged.
- ``slots`` is tuned before it is compared: the best number of `SLOTS` for the mix at twice the load.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean

from extproc.sim.drill.faults import FAULTS
from extproc.sim.drill.knee import cached_knee
from extproc.sim.drill.lengths import MIXES
from extproc.sim.drill.runs import Run, play_all, surging
from extproc.sim.drill.setting import Setting

SLOTS = (8, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64, 72, 80, 96, 112, 128)
"""Slots per endpoint that the tuning tries."""
TUNING_SEEDS = (8001, 8002)
TUNING_LOAD = 2.0

Progress = Callable[[str, int, int], None]
"""Hears what is being done, how much of it is, and how much there is."""


@dataclass(frozen=True, slots=True)
class Cell:
    """What is played over all seeds.

    Attributes:
        mix: a name out of `MIXES`, or "trace".
        load: times the knee; with a trace, times the trace.
        controller: one of `runs.CONTROLLERS`.
        shape: one of `runs.SHAPES`.
        fault: a name out of `FAULTS`.
    """

    mix: str
    load: float
    controller: str
    shape: str = "steady"
    fault: str = "none"


Scores = Mapping[str, float]


@dataclass(slots=True)
class Experiment:
    """Cells and what they came to.

    Attributes:
        setting: where they are played.
        cells: in the order of the report.
        seeds: over which each is played.
        trace: what the mix "trace" replays.
        knees: calls per second at load 1, by mix.
        slots: the number that the tuning chose, by mix.
        results: scores by cell, in the order of the seeds.
    """

    setting: Setting
    cells: Sequence[Cell]
    seeds: Sequence[int]
    trace: Path | None = None
    knees: dict[str, float] = field(default_factory=dict)
    slots: dict[str, int] = field(default_factory=dict)
    results: dict[Cell, list[Scores]] = field(default_factory=dict)

    def play(self, processes: int, progress: Progress) -> None:
        """Find knees, tune the slots, and play every cell.

        Raises:
            NoKneeError: a mix has no knee in this setting.
        """
        mixes = list(dict.fromkeys(cell.mix for cell in self.cells))
        for done, mix in enumerate(mixes):
            progress("knees", done, len(mixes))
            if mix != "trace":
                self.knees[mix] = cached_knee(self.setting, MIXES[mix])
        progress("knees", len(mixes), len(mixes))
        tuned = list(dict.fromkeys(cell.mix for cell in self.cells if cell.controller == "slots"))
        self._tune(tuned, processes, progress)
        keys = [(cell, seed) for cell in self.cells for seed in self.seeds]
        runs = [self._run(cell, seed) for cell, seed in keys]
        for (cell, _), scores in zip(
            keys, play_all(runs, processes, _counter("runs", len(runs), progress)), strict=True
        ):
            self.results.setdefault(cell, []).append(scores)

    def _tune(self, mixes: Sequence[str], processes: int, progress: Progress) -> None:
        keys = [(mix, each * self.setting.endpoints) for mix in mixes for each in SLOTS]
        runs = [
            self._run(Cell(mix, 1.0 if mix == "trace" else TUNING_LOAD, f"slots:{slots}"), seed)
            for mix, slots in keys
            for seed in TUNING_SEEDS
        ]
        if not runs:
            return
        played = play_all(runs, processes, _counter("tuning slots", len(runs), progress))
        goodputs = [scores["goodput"] for scores in played]
        size = len(TUNING_SEEDS)
        best: dict[str, tuple[float, int]] = {}
        for number, (mix, slots) in enumerate(keys):
            goodput = fmean(goodputs[number * size : (number + 1) * size])
            best[mix] = max(best.get(mix, (-1.0, 0)), (goodput, slots), key=lambda each: each[0])
        self.slots = {mix: slots for mix, (_, slots) in best.items()}

    def _run(self, cell: Cell, seed: int) -> Run:
        controller = cell.controller
        if controller == "slots":
            controller = f"slots:{self.slots[cell.mix]}"
        setting = self.setting
        if cell.mix == "trace":
            return Run(setting, controller, None, cell.load, cell.shape, seed, trace=self.trace)
        rate = self.knees[cell.mix]
        if cell.shape == "surge":
            setting = surging(setting)
        else:
            rate *= cell.load
        return Run(setting, controller, MIXES[cell.mix], rate, cell.shape, seed, FAULTS[cell.fault])

    def ratio(self, cell: Cell, reference: Cell, score: str = "goodput") -> list[float]:
        """Return a score relative to another cell's, seed by seed."""
        return [
            one[score] / other[score]
            for one, other in zip(self.results[cell], self.results[reference], strict=True)
            if other[score]
        ]

    def values(self, cell: Cell, score: str) -> list[float]:
        """Return a cell's score, seed by seed."""
        return [scores[score] for scores in self.results[cell]]

    def reference(self, cell: Cell) -> Cell | None:
        """Return the clairvoyant's cell on the same calls, if it was played.

        Faults that touch the gateway only do not touch it.
        """
        own = replace(cell, controller="clairvoyant")
        for candidate in (own, replace(own, fault="none")):
            if candidate in self.results:
                return candidate
        return None


def _counter(what: str, total: int, progress: Progress) -> Callable[[], None]:
    done = 0
    progress(what, 0, total)

    def count() -> None:
        nonlocal done
        done += 1
        progress(what, done, total)

    return count
