"""The bars that the published experiment is held to.

Rules kept here:

- Every bar shows the measured value of its worst cell, met or not. None is left out.
- Beside it stands what the clairvoyant came to in the same cell: where it misses the bar as well, no
  controller can meet it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from extproc.sim.drill.confidence import Mean, mean
from extproc.sim.drill.experiment import Cell, Experiment
from extproc.sim.drill.faults import FAULTS, OTHERWISE
from extproc.sim.drill.runs import CONTROLLERS, OURS

MIXES = ("balanced", "decode-heavy", "long-prompt")
LOADS = (0.9, 1.0, 2.0, 3.0)
FAULT_LOAD = 2.0
NOTHING = Mean(math.nan, math.nan)


def cells() -> list[Cell]:
    """Return all that is played."""
    controllers = (*(c for c in CONTROLLERS if c not in (OURS, "clairvoyant")), OURS, "clairvoyant")
    steady = [Cell(m, load, c) for m in MIXES for load in LOADS for c in controllers]
    surge = [Cell(m, 1.0, c, "surge") for m in MIXES for c in controllers]
    bursts = [Cell(m, 2.0, c, "bursts") for m in MIXES for c in controllers]
    noisy = [Cell(m, 3.0, c, "steady", "noisy") for m in MIXES for c in ("slots", OURS)]
    faulty = [
        Cell(mix, FAULT_LOAD, controller, "steady", fault)
        for mix in MIXES
        for fault in FAULTS
        if fault not in OTHERWISE
        for controller in (("watermark", OURS, "clairvoyant") if FAULTS[fault].death else (OURS,))
    ]
    back = [Cell(m, load, OURS, "steady", "come-back") for m in MIXES for load in (2.0, 3.0)]
    patient = [
        Cell(m, load, OURS, shape, "patient")
        for m in MIXES
        for load, shape in ((0.9, "steady"), (2.0, "steady"), (1.0, "surge"))
    ]
    return [*steady, *surge, *bursts, *faulty, *noisy, *back, *patient]


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar: what was measured in its worst cell, and the clairvoyant's value there."""

    measure: str
    bar: str
    cell: str
    measured: Mean
    best: Mean
    met: bool
    percent: bool = True


def bars(experiment: Experiment) -> Iterator[Bar]:
    """Yield every bar, worst cells only."""
    e = experiment
    highest, *rest = e.setting.config.classes
    for load, least in ((2.0, 0.995), (3.0, 0.99)):
        cells = _ours(load)
        yield _least(e, f"{highest} in time at {load:g}×", least, cells, f"in_time_{highest}")
    for load in (1.0, 2.0, 3.0):
        yield _worst(
            f"goodput of the clairvoyant's, {load:g}×",
            0.95,
            ((c, e.ratio(c, Cell(c.mix, load, "clairvoyant"))) for c in _ours(load)),
        )
    yield _worst("goodput at 3× of its peak", 0.97, ((c, _of_peak(e, c)) for c in _ours(3.0)))
    every = _ours(*LOADS)
    yield _least(e, "admitted in time", 0.99, every, "admitted_in_time")
    for mix, most in zip(MIXES, (0.02, 0.05, 0.02), strict=True):
        cells = [cell for cell in every if cell.mix == mix]
        yield _most(e, f"wasted tokens, {mix}", most, cells, "waste")
    for name in (highest, *rest):
        most = 0.01 if name == rest[-1] else 0.001
        yield _most(e, f"{name} shed at 0.9×", most, _ours(0.9), f"shed_{name}")
    yield _most(
        e,
        "priority inversions",
        0,
        [c for c in e.results if c.controller == OURS],
        "inversions",
        percent=False,
    )
    surge = [Cell(mix, 1.0, OURS, "surge") for mix in MIXES]
    yield _most(e, "recovery after 0.8→3→0.8×, s", 2.0, surge, "recovery", percent=False)
    yield _most(e, "KV usage s.d. at 2×", 0.04, _ours(2.0), "kv_sd", percent=False)
    yield _most(e, "open/close flips per minute at 2×", 6.0, _ours(2.0), "flips", percent=False)
    lowest = rest[-1]
    patient = [c for c in e.results if c.fault == "patient"]
    for measure, most, score, load, shape, percent in (
        (f"{lowest} shed at 0.9×", 0.01, f"shed_{lowest}", 0.9, "steady", True),
        ("recovery after 0.8→3→0.8×, s", 2.0, "recovery", 1.0, "surge", False),
        ("KV usage s.d. at 2×", 0.04, "kv_sd", 2.0, "steady", False),
    ):
        cells = [c for c in patient if (c.load, c.shape) == (load, shape)]
        text = f"{measure}, where {lowest} may wait 10 s"
        yield _most(e, text, most, cells, score, percent=percent)
    faulty = [c for c in e.results if c.controller == OURS and c.fault not in OTHERWISE]
    for fault in dict.fromkeys(cell.fault for cell in faulty):
        cells = [cell for cell in faulty if cell.fault == fault]
        yield _worst(
            f"goodput under {fault}, of that without", 0.95, ((c, _kept(e, c)) for c in cells)
        )
        yield _least(e, f"{highest} in time under {fault}", 0.99, cells, f"in_time_{highest}")
    noisy = [cell for cell in e.results if cell.controller == OURS and cell.fault == "noisy"]
    yield _least(e, "Jain, one tenant sending 10×", 0.98, noisy, "jain", percent=False)
    yield _most(e, "injustice, of the VTC bound", 2.0, noisy, "vtc", percent=False)


def _ours(*loads: float) -> list[Cell]:
    return [Cell(mix, load, OURS) for mix in MIXES for load in loads]


def _of_peak(experiment: Experiment, cell: Cell) -> list[float]:
    by_load = [experiment.values(Cell(cell.mix, load, OURS), "goodput") for load in LOADS]
    peak = max(by_load, key=lambda values: mean(values).value)
    return [own / most for own, most in zip(by_load[LOADS.index(cell.load)], peak, strict=True)]


def _kept(experiment: Experiment, cell: Cell) -> list[float]:
    """Return the goodput against that without the fault, both relative to the clairvoyant's.

    An endpoint that is gone takes its capacity along, from the clairvoyant as well.
    """
    without = Cell(cell.mix, cell.load, OURS, cell.shape)
    reference = experiment.reference(cell)
    clear = experiment.reference(without)
    if reference is None or clear is None:
        return []
    return [
        own / other
        for own, other in zip(
            experiment.ratio(cell, reference), experiment.ratio(without, clear), strict=True
        )
    ]


def _least(
    e: Experiment,
    measure: str,
    least: float,
    cells: Sequence[Cell],
    score: str,
    *,
    percent: bool = True,
) -> Bar:
    bar = _worst(measure, least, ((c, e.values(c, score)) for c in cells), percent=percent)
    return _with_best(e, bar, cells, score)


def _most(
    e: Experiment,
    measure: str,
    most: float,
    cells: Sequence[Cell],
    score: str,
    *,
    percent: bool = True,
) -> Bar:
    values = ((c, e.values(c, score)) for c in cells)
    bar = _worst(measure, most, values, percent=percent, sign=-1.0)
    return _with_best(e, bar, cells, score)


def _with_best(e: Experiment, bar: Bar, cells: Sequence[Cell], score: str) -> Bar:
    """Put the clairvoyant's score of the worst cell beside it, where that was played."""
    for cell in cells:
        reference = e.reference(cell)
        if _where(cell) == bar.cell and reference is not None:
            return replace(bar, best=mean(e.values(reference, score)))
    return bar


def _where(cell: Cell) -> str:
    pressure = cell.shape if cell.shape != "steady" else f"{cell.load:g}×"
    return ", ".join((cell.mix, pressure, *({cell.fault} - {"none"})))


def _worst(
    measure: str,
    limit: float,
    values: Iterable[tuple[Cell, list[float]]],
    *,
    percent: bool = True,
    sign: float = 1.0,
) -> Bar:
    """Return the bar with the cell that is worst; ``sign`` is -1 where less is better."""
    known = [(mean(each), cell) for cell, each in values]
    known = [each for each in known if not math.isnan(each[0].value)]
    relation = "≥" if sign > 0 else "≤"
    text = f"{relation} {limit * 100:g} %" if percent else f"{relation} {limit:g}"
    if not known:
        return Bar(measure, text, "–", NOTHING, NOTHING, met=False, percent=percent)
    measured, cell = min(known, key=lambda each: sign * each[0].value)
    met = sign * measured.value >= sign * limit - 1e-9
    return Bar(measure, text, _where(cell), measured, NOTHING, met, percent)
