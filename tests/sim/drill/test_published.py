"""The published page: every bar with its worst cell, why one was missed, and what is kept of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from extproc.sim.drill.bars import bars, cells
from extproc.sim.drill.experiment import Cell, Experiment
from extproc.sim.drill.published import REAL, page, with_real
from extproc.sim.drill.setting import Setting

GOOD = {
    "goodput": 10.0,
    "waste": 0.0,
    "admitted_in_time": 1.0,
    "inversions": 0.0,
    "kv_mean": 0.9,
    "kv_sd": 0.02,
    "kv_full": 0.5,
    "flips": 2.0,
    "recovery": 1.0,
    "jain": 0.99,
    "vtc": 0.1,
    "evicted": 0.0,
    **{f"in_time_{name}": 1.0 for name in ("P0", "P1", "P2")},
    **{f"shed_{name}": 0.0 for name in ("P0", "P1", "P2")},
    **{f"back_{name}": 1.0 for name in ("P0", "P1", "P2")},
}
Spoil = Callable[[Cell], dict[str, float]]


def experiment(spoil: Spoil = lambda cell: {}) -> Experiment:
    made = Experiment(Setting(), cells(), (1, 2))
    made.slots = {"balanced": 80, "decode-heavy": 60, "long-prompt": 40}
    for cell in cells():
        made.results[cell] = [{**GOOD, **spoil(cell)}] * 2
    return made


def test_every_bar_is_met_by_a_perfect_controller() -> None:
    held = list(bars(experiment()))

    assert [bar.measure for bar in held if not bar.met] == []
    assert len(held) == 17 + 3 + 2 * 12 + 2
    assert "What was missed" not in page(experiment())


def test_a_bar_shows_its_worst_cell_and_the_clairvoyants_value_there() -> None:
    def spoil(cell: Cell) -> dict[str, float]:
        if (cell.mix, cell.load, cell.shape) != ("decode-heavy", 0.9, "steady"):
            return {}
        if cell.fault == "none" and cell.controller == "tidegate":
            return {"shed_P2": 0.06}
        return {"shed_P2": 0.01} if cell.controller == "clairvoyant" else {}

    text = page(experiment(spoil))

    assert "| P2 shed at 0.9× | ≤ 1 % | 6 | 1 | decode-heavy, 0.9× | **no** |" in text
    assert "- **P2 shed at 0.9×**: rule 2 sheds P2 while" in text
    assert "| P2 shed at 0.9×, where P2 may wait 10 s | ≤ 1 % | 0 |" in text


@pytest.mark.parametrize(
    ("score", "value", "measure"),
    [("kv_sd", 0.05, "KV usage s.d. at 2×"), ("in_time_P0", 0.9, "P0 in time under death")],
)
def test_a_missed_bar_says_why(score: str, value: float, measure: str) -> None:
    text = page(experiment(lambda cell: {score: value}))

    assert f"- **{measure}**: " in text


def test_what_was_measured_in_real_time_is_kept() -> None:
    first = page(experiment())
    assert first == page(experiment())
    both = with_real(first, "so fast\n")

    assert both.startswith(first.rstrip())
    assert both.endswith(f"{REAL}\nso fast\n")
    assert page(experiment(), both) == both
    assert with_real(both, "faster\n").endswith(f"{REAL}\nfaster\n")
