"""What an experiment shows: tables for people, JSON for programs.

Rules kept here:

- Every number is a mean over the seeds with its 95 % bounds.
- Equal results give equal bytes: nothing of the machine or of the time is in them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.table import Table

from extproc.sim.drill.confidence import Mean, mean
from extproc.sim.drill.experiment import Cell, Experiment


@dataclass(frozen=True, slots=True)
class Column:
    """One column of the table: its heading, its values by seed, its unit.

    ``detail``: too much for a terminal.
    """

    heading: str
    values: Callable[[Experiment, Cell], Sequence[float]]
    percent: bool = True
    detail: bool = False


def _score(name: str) -> Callable[[Experiment, Cell], Sequence[float]]:
    return lambda experiment, cell: experiment.values(cell, name)


def _relative(experiment: Experiment, cell: Cell) -> Sequence[float]:
    reference = experiment.reference(cell)
    return [] if reference is None else experiment.ratio(cell, reference)


def columns(experiment: Experiment, *, detail: bool) -> list[Column]:
    """Return the columns that have a value in at least one cell."""
    names = list(experiment.setting.config.classes)
    every = [
        *(Column(f"{name} in time", _score(f"in_time_{name}")) for name in names),
        *(Column(f"{name} shed", _score(f"shed_{name}"), detail=True) for name in names),
        *(Column(f"{name} back", _score(f"back_{name}"), detail=True) for name in names),
        Column("goodput", _score("goodput"), percent=False, detail=True),
        Column("of best", _relative),
        Column("admitted", _score("admitted_in_time")),
        Column("waste", _score("waste")),
        Column("inversions", _score("inversions"), percent=False, detail=True),
        Column("KV mean", _score("kv_mean"), detail=True),
        Column("KV s.d.", _score("kv_sd"), detail=True),
        Column("KV full", _score("kv_full"), detail=True),
        Column("flips", _score("flips"), percent=False),
        Column("recovery", _score("recovery"), percent=False),
        Column("evicted", _score("evicted"), detail=True),
        Column("Jain", _score("jain"), percent=False, detail=True),
    ]
    return [
        column
        for column in every
        if (detail or not column.detail)
        and any(
            not math.isnan(value)
            for cell in experiment.results
            for value in column.values(experiment, cell)
        )
    ]


def shown(number: Mean, *, percent: bool = True) -> str:
    """Return a mean as text: three figures, its bounds after it where they would show."""
    if math.isnan(number.value):
        return "–"
    scale = 100.0 if percent else 1.0
    text = _figures(number.value * scale)
    half = number.half * scale
    if math.isnan(half) or half < 0.005:
        return text
    return f"{text} ±{_figures(half)}"


def _figures(number: float) -> str:
    size = abs(number)
    digits = (
        0 if size >= 99.95 and size != 100 else 1 if size >= 9.995 else 2 if size >= 0.0995 else 3
    )
    if 99.0 <= size < 100.0:  # how far a share is from all is what matters
        digits = 2
    text = f"{number:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


Rows = list[list[str]]


def groups(experiment: Experiment, *, detail: bool = True) -> Iterator[tuple[str, list[str], Rows]]:
    """Yield the parts of the table: title, headings and rows, all of them text."""
    chosen = columns(experiment, detail=detail)
    headings = ["load", "controller", *(column.heading for column in chosen)]
    cells: dict[tuple[str, str, str], list[Cell]] = {}
    for cell in experiment.results:
        cells.setdefault((cell.mix, cell.shape, cell.fault), []).append(cell)
    for (mix, shape, fault), members in cells.items():
        title = mix if shape == "steady" else f"{mix}, {shape}"
        if mix in experiment.knees:
            title += f" (1× = {experiment.knees[mix]:g} calls/s)"
        if fault != "none":
            title += f", {fault}"
        yield title, headings, [_row(experiment, cell, chosen) for cell in members]


def _row(experiment: Experiment, cell: Cell, chosen: Sequence[Column]) -> list[str]:
    controller = cell.controller
    if controller == "slots":
        controller = f"slots ({experiment.slots[cell.mix]})"
    load = "0.8→3→0.8" if cell.shape == "surge" and cell.mix != "trace" else f"{cell.load:g}×"
    numbers = (
        shown(mean(column.values(experiment, cell)), percent=column.percent) for column in chosen
    )
    return [load, controller, *numbers]


def tables(experiment: Experiment) -> Iterator[Table]:
    """Yield the tables for a terminal."""
    for title, headings, rows in groups(experiment, detail=False):
        table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
        for number, heading in enumerate(headings):
            table.add_column(
                heading, justify="left" if number == 1 else "right", no_wrap=number < 2
            )
        before = None
        for row in rows:
            if before is not None and row[0] != before:
                table.add_section()
            before = row[0]
            table.add_row(*row)
        yield table


def markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def as_json(experiment: Experiment) -> str:
    """Return everything as JSON; NaN becomes null."""
    return (
        json.dumps(
            {
                "seeds": list(experiment.seeds),
                "knees": experiment.knees,
                "slots": experiment.slots,
                "cells": [
                    {
                        "mix": cell.mix,
                        "load": cell.load,
                        "shape": cell.shape,
                        "fault": cell.fault,
                        "controller": cell.controller,
                        "scores": {
                            name: _summary(experiment.values(cell, name)) for name in scores[0]
                        },
                    }
                    for cell, scores in experiment.results.items()
                ],
            },
            indent=1,
        )
        + "\n"
    )


def _summary(values: Sequence[float]) -> dict[str, object]:
    overall = mean(values)
    return {
        "mean": _number(overall.value),
        "bounds": _number(overall.half),
        "seeds": [_number(value) for value in values],
    }


def _number(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 6)
