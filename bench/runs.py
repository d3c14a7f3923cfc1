"""Which figures are measured, how long, against which floor and bar."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field

import psutil

from bench.figures import Against, Bar, Figure
from bench.measure import Bench, Latency, WrongAnswerError, in_turn
from bench.stand import ADMITTED, SHED, Gateway, Stand
from bench.streams import EDITED_STREAMS, STREAMS, Gaps, gaps

RATE = 500.0
"""Exchanges per second at which fallbacks are timed and CPU is counted."""
CALM_RATE = 100.0
"""Exchanges per second at which added latency is measured: nothing queues."""
_MS, _US, _MIB = 1e3, 1e6, 1 / (1 << 20)


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is measured: rounds, seconds of each measurement, the rates of the table."""

    rounds: int
    seconds: float
    rates: tuple[float, ...]
    concurrency: int = 32


FULL = Extent(rounds=5, seconds=8.0, rates=(100, 250, 500, 750, 1000, 1250, 1500))
QUICK = Extent(rounds=2, seconds=2.5, rates=(100, 500, 1000))


@dataclass(frozen=True, slots=True)
class Row:
    """Fallback latency at a rate: Tidegate's, and its floor's; None where it broke down."""

    rate: float
    latency: Latency | None
    floor: Latency | None


@dataclass(slots=True)
class Results:
    """Everything that was measured."""

    figures: list[Figure] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)


async def run(stand: Stand, bench: Bench, extent: Extent, say: Callable[[str], None]) -> Results:
    """Measure everything; ``say`` is told what comes next.

    Raises:
        WrongAnswerError: a gateway did not answer as it should at a rate that it must bear.
    """
    results = Results()
    before = _memory(stand.tidegate)
    say("warming up")
    for gateway in (
        stand.tidegate,
        stand.passing,
        stand.answering,
        stand.three_messages,
        stand.envoy_alone,
    ):
        for tenant in gateway.answers:
            await bench.latency(gateway, tenant, CALM_RATE, extent.seconds / 4)
    for part in (_fallback_latency, _cpu_admitted, _cpu_shed, _cpu_idle, _added_latency, _streams):
        results.figures += await part(stand, bench, extent, say)
    results.rows = await _rates(stand, bench, extent, say)
    results.figures += await _saturation(stand, bench, extent, say)
    after = _memory(stand.tidegate)
    results.figures.append(Figure("memory after it all", "MiB", [after], "before", [before]))
    return results


async def _fallback_latency(
    stand: Stand, bench: Bench, extent: Extent, say: Callable[[str], None]
) -> list[Figure]:
    say(f"fallbacks at {RATE:g}/s")
    subject, floor = await in_turn(
        extent.rounds,
        [
            lambda: bench.latency(stand.tidegate, SHED, RATE, extent.seconds),
            lambda: bench.latency(stand.answering, SHED, RATE, extent.seconds),
        ],
    )
    name = f"fallback {RATE:g}/s"
    return _latencies(name, subject, "no-op", floor, p99=Bar(5.0, Against.VALUE))


async def _cpu_admitted(
    stand: Stand, bench: Bench, extent: Extent, say: Callable[[str], None]
) -> list[Figure]:
    say("CPU of an admitted exchange")
    subject, passing, three = await in_turn(
        extent.rounds,
        [
            lambda: bench.cpu(stand.tidegate, ADMITTED, RATE, extent.seconds),
            lambda: bench.cpu(stand.passing, ADMITTED, RATE, extent.seconds),
            lambda: bench.cpu(stand.three_messages, ADMITTED, RATE, extent.seconds),
        ],
    )
    values = _scaled(subject, _US)
    return [
        Figure("CPU admitted", "µs", values, floor, _scaled(floors, _US), Bar(limit, Against.RATIO))
        for floor, floors, limit in (("no-op", passing, 1.3), ("3 messages", three, 1.0))
    ]


async def _cpu_shed(
    stand: Stand, bench: Bench, extent: Extent, say: Callable[[str], None]
) -> list[Figure]:
    say("CPU of a shed exchange")
    subject, floor = await in_turn(
        extent.rounds,
        [
            lambda: bench.cpu(stand.tidegate, SHED, RATE, extent.seconds),
            lambda: bench.cpu(stand.answering, SHED, RATE, extent.seconds),
        ],
    )
    values, floors = _scaled(subject, _US), _scaled(floor, _US)
    return [Figure("CPU shed", "µs", values, "no-op", floors, Bar(1.3, Against.RATIO))]


async def _cpu_idle(
    stand: Stand, bench: Bench, extent: Extent, say: Callable[[str], None]
) -> list[Figure]:
    say("CPU of doing nothing")
    idle = [
        [await bench.idle_cpu(gateway, extent.seconds) * _MS]
        for gateway in (stand.tidegate, stand.passing)
    ]
    return [Figure("CPU idle, a second", "ms", idle[0], "no-op", idle[1])]


async def _added_latency(
    stand: Stand, bench: Bench, extent: Extent, say: Callable[[str], None]
) -> list[Figure]:
    say(f"admitted calls at {CALM_RATE:g}/s")
    subject, floor = await in_turn(
        extent.rounds,
        [
            lambda: bench.latency(stand.tidegate, ADMITTED, CALM_RATE, extent.seconds),
            lambda: bench.latency(stand.envoy_alone, ADMITTED, CALM_RATE, extent.seconds),
        ],
    )
    name = f"admitted {CALM_RATE:g}/s"
    return _latencies(name, subject, "Envoy", floor, p50=Bar(1.6, Against.ADDED))


async def _streams(
    stand: Stand, bench: Bench, extent: Extent, say: Callable[[str], None]
) -> list[Figure]:
    figures = []
    for streams, edited in ((STREAMS, False), (EDITED_STREAMS, True)):
        say(f"{streams} streams{', edited' if edited else ''}")

        async def measure(gateway: Gateway, streams: int = streams, edited: bool = edited) -> Gaps:
            return await gaps(
                gateway,
                ADMITTED,
                streams=streams,
                seconds=extent.seconds,
                clock=bench.clock,
                edited=edited,
            )

        subject, floor = await in_turn(
            extent.rounds, [lambda: measure(stand.tidegate), lambda: measure(stand.envoy_alone)]
        )
        name = f"{streams} {'edited streams' if edited else 'streams'}, gap"
        for label in ("p50", "p99"):
            values = _scaled([getattr(each, label) for each in subject], _MS)
            floors = _scaled([getattr(each, label) for each in floor], _MS)
            bar = None if edited else Bar(1.05, Against.RATIO)
            figures.append(Figure(f"{name} {label}", "ms", values, "Envoy", floors, bar))
        cost = _scaled([each.cpu for each in subject], _US)
        figures.append(Figure(f"CPU per {'edited ' if edited else ''}token", "µs", cost))
    return figures


async def _rates(
    stand: Stand, bench: Bench, extent: Extent, say: Callable[[str], None]
) -> list[Row]:
    rows = []
    for rate in extent.rates:
        say(f"fallbacks at {rate:g}/s")
        measured: list[Latency | None] = []
        for gateway in (stand.tidegate, stand.answering):
            measured.append(None)
            with contextlib.suppress(WrongAnswerError):
                measured[-1] = await bench.latency(gateway, SHED, rate, extent.seconds / 2)
        rows.append(Row(rate, *measured))
    return rows


async def _saturation(
    stand: Stand, bench: Bench, extent: Extent, say: Callable[[str], None]
) -> list[Figure]:
    say("fallbacks closed loop")
    width, seconds = extent.concurrency, extent.seconds / 2
    subject, floor = await in_turn(
        extent.rounds,
        [
            lambda: bench.saturation(stand.tidegate, SHED, width, seconds),
            lambda: bench.saturation(stand.answering, SHED, width, seconds),
        ],
    )
    return [Figure("fallbacks closed loop", "/s", subject, "no-op", floor)]


def _latencies(
    name: str,
    subject: list[Latency],
    floor_name: str,
    floor: list[Latency],
    *,
    p50: Bar | None = None,
    p99: Bar | None = None,
) -> list[Figure]:
    return [
        Figure(
            f"{name} {label}",
            "ms",
            _scaled([getattr(each, label) for each in subject], _MS),
            floor_name,
            _scaled([getattr(each, label) for each in floor], _MS),
            bar,
        )
        for label, bar in (("p50", p50), ("p99", p99), ("late", None))
    ]


def _scaled(values: list[float], factor: float) -> list[float]:
    return [value * factor for value in values]


def _memory(gateway: Gateway) -> float:
    return float(psutil.Process(gateway.processor).memory_info().rss) * _MIB
