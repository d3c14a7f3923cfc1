"""What a drill in real time was worth, and how far the model is from it.

Rules this module keeps:

* Shares are of all calls offered in the measured time; what a fallback answered is a miss.
* Percentiles are of calls that an engine answered to the end, exact (nearest rank), in seconds.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from extproc.sim.drill.history import End, Record
from extproc.sim.drill.report import markdown
from extproc.sim.drill.score import in_time, percentile
from extproc.sim.drill.setting import Setting
from extproc.stand.real.load import Seen


@dataclass(frozen=True, slots=True)
class ClassMeasures:
    """One class: shares 0..1; percentiles 50 and 99 in seconds.

    Attributes:
        offered: calls.
        in_time, shed: shares of them.
        first: until the first token.
        token: for each further token, the mean of a call.
        pause: longest time between two pieces of an answer.
        whole: until the end.
    """

    name: str
    offered: int
    in_time: float
    shed: float
    first: tuple[float, float]
    token: tuple[float, float]
    pause: tuple[float, float]
    whole: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Measures:
    """One controller: weighted goodput per second, share of the admitted in time, and the classes.

    Attributes:
        late: seconds after which 1 % of the calls left when they were due; NaN in virtual time.
        errors: what went wrong, and how often.
    """

    goodput: float
    admitted: float
    classes: tuple[ClassMeasures, ...]
    late: float
    errors: Counter[str]


def measure(every: Sequence[Seen], setting: Setting, *, virtual: bool = False) -> Measures:
    """Return what a drill was worth."""
    counted = [each for each in every if each.record.counts]
    goodput = sum(
        setting.terms[each.record.call.rank].worth * in_time(each.record, setting)
        for each in counted
    )
    let_in = [each.record for each in counted if each.record.sent_at < math.inf]
    return Measures(
        goodput / setting.measured,
        _share(let_in, lambda record: in_time(record, setting)),
        tuple(
            _of_class(name, [each for each in counted if each.record.call.rank == rank], setting)
            for rank, name in enumerate(setting.config.classes)
        ),
        math.nan if virtual else percentile([each.late for each in counted], 0.99),
        Counter(each.error for each in counted if each.error is not None),
    )


def _of_class(name: str, every: Sequence[Seen], setting: Setting) -> ClassMeasures:
    records = [each.record for each in every]
    ended = [each for each in records if each.end is End.COMPLETED]
    return ClassMeasures(
        name,
        len(every),
        _share(records, lambda record: in_time(record, setting)),
        _share(records, lambda record: record.end is End.SHED),
        _two(record.first_at - record.call.at for record in ended),
        _two(
            (record.ended_at - record.first_at) / (record.call.output - 1)
            for record in ended
            if record.call.output > 1
        ),
        _two(each.pause for each in every if each.record.end is End.COMPLETED),
        _two(record.ended_at - record.call.at for record in ended),
    )


def _share(records: Sequence[Record], holds: Callable[[Record], bool]) -> float:
    return sum(map(holds, records)) / len(records) if records else math.nan


def _two(values: Iterable[float]) -> tuple[float, float]:
    known = list(values)
    return percentile(known, 0.5), percentile(known, 0.99)


HEADS = (
    "controller", "class", "offered", "in time", "shed", "first token, s", "per token, ms",
    "longest pause, ms", "whole, s",
)  # fmt: skip


def rows(controller: str, measures: Measures) -> list[tuple[str, ...]]:
    """Return the rows of one controller; percentiles are p50 / p99."""
    return [
        (
            controller,
            each.name,
            str(each.offered),
            _percent(each.in_time),
            _percent(each.shed),
            _pair(each.first),
            _pair(each.token, 1e3),
            _pair(each.pause, 1e3),
            _pair(each.whole),
        )
        for each in measures.classes
    ]


def error_rows(controller: str, real: Measures, virtual: Measures) -> list[tuple[str, ...]]:
    """Return the rows that hold the model against what was measured."""
    made = [
        (
            controller,
            one.name,
            f"{_percent(other.in_time)} / {_percent(one.in_time)}",
            f"{(other.in_time - one.in_time) * 100:+.1f}",
            f"{_number(other.first[0])} / {_number(one.first[0])}",
            f"{_number(other.first[1])} / {_number(one.first[1])}",
            f"{_number(other.token[0] * 1e3)} / {_number(one.token[0] * 1e3)}",
        )
        for one, other in zip(real.classes, virtual.classes, strict=True)
    ]
    off = virtual.goodput / real.goodput - 1.0 if real.goodput else math.nan
    goodputs = f"{virtual.goodput:.1f} / {real.goodput:.1f}"
    return [*made, (controller, "goodput", goodputs, f"{off * 100:+.1f} %", "", "", "")]


ERROR_HEADS = (
    "controller", "class", "in time, model / real", "off", "first token p50, s", "p99, s",
    "per token p50, ms",
)  # fmt: skip


def page(settings: str, real: dict[str, Measures], virtual: dict[str, Measures]) -> str:
    """Return the part of the published page that was measured in real time, in Markdown."""
    lines = [row for name, measures in real.items() for row in rows(name, measures)]
    parts = [f"{settings}\n", _HOW, markdown(HEADS, lines), *map(_notes, real, real.values())]
    if virtual:
        errors = [
            row for name, model in virtual.items() for row in error_rows(name, real[name], model)
        ]
        parts += [_MODEL, markdown(ERROR_HEADS, errors)]
    return "\n".join(parts)


_HOW = """\
Calls leave when they are due, whatever became of others, and every time counts from then (no
coordinated omission). Of the calls that an engine answered to the end, p50 / p99; per token is the
mean of a call after its first one. none: Tidegate in shadow mode, engines first come, first served.
watermark: the plain rules on scraped ratios.
"""
_MODEL = """\
The same calls in virtual time, against the same controllers: how far the model is off.
"""


def _notes(controller: str, measures: Measures) -> str:
    failed = ", ".join(f"{count} × {error}" for error, count in measures.errors.most_common())
    late = f"1 % of the calls left more than {measures.late * 1e3:.1f} ms late"
    return f"- {controller}: {late}; failed: {failed or 'none'}.\n"


def _percent(share: float) -> str:
    return "–" if math.isnan(share) else f"{share * 100:.1f} %"


def _number(value: float) -> str:
    if math.isnan(value):
        return "–"
    return f"{value:.2f}" if value < 10 else f"{value:.0f}"


def _pair(values: tuple[float, float], scale: float = 1.0) -> str:
    return " / ".join(_number(value * scale) for value in values)
