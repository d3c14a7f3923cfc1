"""The published experiment: its cells, the bars they are held to, and the page they make.

Rules kept here:

- Every bar shows the measured value of its worst cell, met or not. None is left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from extproc.sim.drill.confidence import Mean, mean
from extproc.sim.drill.experiment import Cell, Experiment
from extproc.sim.drill.faults import FAULTS
from extproc.sim.drill.report import groups, markdown, shown
from extproc.sim.drill.runs import CONTROLLERS, OURS

MIXES = ("balanced", "decode-heavy", "long-prompt")
LOADS = (0.9, 1.0, 2.0, 3.0)
FAULT_LOAD = 2.0


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
        if fault not in ("none", "noisy")
        for controller in (("watermark", OURS, "clairvoyant") if FAULTS[fault].death else (OURS,))
    ]
    return [*steady, *surge, *bursts, *faulty, *noisy]


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar: what was measured in its worst cell."""

    measure: str
    bar: str
    cell: str
    measured: Mean
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
    faulty = [c for c in e.results if c.controller == OURS and c.fault not in ("none", "noisy")]
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
    cells: Iterable[Cell],
    score: str,
    *,
    percent: bool = True,
) -> Bar:
    return _worst(measure, least, ((c, e.values(c, score)) for c in cells), percent=percent)


def _most(
    e: Experiment,
    measure: str,
    most: float,
    cells: Iterable[Cell],
    score: str,
    *,
    percent: bool = True,
) -> Bar:
    values = ((c, e.values(c, score)) for c in cells)
    return _worst(measure, most, values, percent=percent, sign=-1.0)


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
        return Bar(measure, text, "–", Mean(math.nan, math.nan), met=False, percent=percent)
    measured, cell = min(known, key=lambda each: sign * each[0].value)
    met = sign * measured.value >= sign * limit - 1e-9
    where = cell.shape if cell.shape != "steady" else f"{cell.load:g}×"
    return Bar(measure, text, f"{cell.mix}, {where}", measured, met, percent)


def page(experiment: Experiment) -> str:
    """Return the page, in Markdown."""
    seconds = experiment.setting.measured
    parts = [
        "# The drill\n",
        "Written by `make drill`; the words are in `extproc/sim/drill/published.py`.\n",
        _INTRODUCTION.format(seeds=len(experiment.seeds), seconds=f"{seconds:g}"),
        "## The bars\n",
        "Each with the cell in which it was worst.\n",
        markdown(
            ("measure", "bar", "measured", "where", "met"),
            (
                (
                    b.measure,
                    b.bar,
                    shown(b.measured, percent=b.percent),
                    b.cell,
                    "yes" if b.met else "**no**",
                )
                for b in bars(experiment)
            ),
        ),
        "## All cells\n",
    ]
    for title, headings, rows in groups(experiment):
        parts += [f"### {title}\n", markdown(headings, rows)]
    return "\n".join(parts)


_INTRODUCTION = """\
Virtual time, {seeds} seeds, {seconds} s measured after a warm-up; means with 95 % bounds (Student's
t). Shares are in per cent and of all calls *offered*; a fallback is a miss.

- Setting: 2 endpoints of 2,048 blocks of 16 tokens, 128 sequences, 2,048 tokens per step; scrape
  200 ms; the gateway's guess of a prompt is up to 10 % wrong. P0, P1, P2 are 20, 30, 50 % of calls.
- Mixes (mean prompt/output, lognormal with a standard deviation as large as the mean): balanced
  400/160, decode-heavy 150/500, long-prompt 1500/80.
- In time: the first token within 2, 5, 15 s from the offer, then 100 ms per token on average.
- 1×: the highest rate at which 99 % of all calls are in time where nothing controls the engines.
- Goodput: calls in time per second, weighted 8 : 3 : 1.
- of best: goodput over the clairvoyant's on the same calls. admitted: in time, of those let in.
  flips: openings and closings of a class per minute. recovery: seconds after a surge
  until as many calls are in time as later on (99 % at most), over five seconds.
- Waste: tokens computed again, or for a call that was not in time, of all computed.
- none: engines first come, first served, least-request balancing. priority: engines by priority.
  slots: a fixed number in flight behind a priority queue, tuned for each mix at 2×. watermark: the
  plain rules on scraped numbers. clairvoyant: `extproc/sim/drill/clairvoyant.py` says what it is.
- An inversion: a call was shed although a lower one, at least as large, was sent while it waited, or
  after it and before the gateway had any news.
"""
