"""Traces of calls: a CSV file with time, prompt, output and, where it has one, client.

Rules kept here:

- Columns are found by the names that published traces have; times are seconds or timestamps.
- Scaling adds callers, not haste: at 2.5 times, each call of the trace appears two or three times,
  the further ones a moment away. Bursts and lulls keep their places.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from random import Random

from extproc.sim.drill.workload import Audience, Call

NEARBY = 1.0
"""Seconds within which an added call follows the one that it was made after."""

_TIME = ("time_s", "time", "timestamp", "arrival_time", "arrived_at")
_PROMPT = ("prompt_tokens", "contexttokens", "prompt", "input_tokens", "num_prefill_tokens")
_OUTPUT = ("output_tokens", "generatedtokens", "output", "completion_tokens", "num_decode_tokens")
_CLIENT = ("client", "tenant", "user", "client_id")


class TraceError(Exception):
    """A trace cannot be read; the text says what to change."""


@dataclass(frozen=True, slots=True)
class Row:
    """One call of a trace; ``at`` in seconds from its first."""

    at: float
    prompt: int
    output: int
    client: str | None


def read(path: Path) -> list[Row]:
    """Read a trace.

    Raises:
        TraceError: it is no CSV file with the columns needed, a value is no number, or it is empty.
        OSError: it cannot be opened.
    """
    with path.open(newline="", encoding="utf-8-sig") as file:
        lines = csv.DictReader(file)
        names = {name.strip().lower(): name for name in lines.fieldnames or ()}
        time = _column(names, _TIME, path)
        prompt = _column(names, _PROMPT, path)
        output = _column(names, _OUTPUT, path)
        client = next((names[name] for name in _CLIENT if name in names), None)
        rows = []
        for line in lines:
            try:
                rows.append(
                    Row(
                        _seconds(line[time]),
                        max(1, int(line[prompt])),
                        max(1, int(line[output])),
                        None if client is None else line[client],
                    )
                )
            except (TypeError, ValueError) as error:
                raise TraceError(f"{path}, line {lines.line_num}: {error}") from error
    if not rows:
        raise TraceError(f"{path} has no calls")
    rows.sort(key=lambda row: row.at)
    start = rows[0].at
    return [Row(row.at - start, row.prompt, row.output, row.client) for row in rows]


def _column(names: dict[str, str], known: Sequence[str], path: Path) -> str:
    for name in known:
        if name in names:
            return names[name]
    raise TraceError(f"{path} needs a column named one of: {', '.join(known)}")


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        # Seven digits of a second are more than fromisoformat takes.
        head, dot, fraction = text.strip().partition(".")
        return datetime.fromisoformat(f"{head}{dot}{fraction[:6]}").timestamp()


def replay(
    rows: Iterable[Row],
    scale: float,
    audiences: Sequence[Audience],
    seed: int,
    *,
    longest: int,
    ranks: dict[str, int],
) -> Iterator[Call]:
    """Yield the calls of a trace, ``scale`` times as many.

    A client that ``ranks`` names has that class; any other draws one by the audiences' shares, once
    for all its calls. Without clients every call draws its class and its tenant.

    Args:
        rows: the trace.
        scale: calls for each call of the trace.
        audiences: by rank.
        seed: of the draws.
        longest: tokens that the engines take; longer calls are cut to it, the prompt first.
        ranks: classes of clients, by name.
    """
    rng = Random(f"{seed}/trace")  # noqa: S311 (no secrets)
    shares = [audience.share for audience in audiences]
    classes = dict(ranks)
    times = []
    for row in rows:
        copies = int(scale) + (rng.random() < scale % 1.0)
        times += [(row.at + (NEARBY * rng.random() if n else 0.0), row) for n in range(copies)]
    times.sort(key=lambda entry: entry[0])
    for number, (at, row) in enumerate(times):
        drawn = rng.choices(audiences, shares)[0]
        if row.client is None:
            audience = drawn
            tenant = rng.choices([t for t, _ in drawn.tenants], [s for _, s in drawn.tenants])[0]
        else:
            audience, tenant = audiences[classes.setdefault(row.client, drawn.rank)], row.client
        output = min(row.output, audience.max_tokens)
        yield Call(
            id=str(number),
            at=at,
            rank=audience.rank,
            tenant=tenant,
            task=audience.task,
            prompt=max(1, min(row.prompt, longest - audience.max_tokens)),
            output=output,
            max_tokens=audience.max_tokens,
        )
