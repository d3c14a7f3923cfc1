"""The bench of the flood valve: what its table says of its rounds."""

from __future__ import annotations

from io import StringIO
from typing import Any

from rich.console import Console

from bench.measure import Latency
from bench.valve import Round, table
from bench.valve_delay import told


def lasting(p99: float, failed: float = 0.0, **flood: object) -> Round:
    return Round(Latency(0.002, p99, p99, 0.001), failed, bool(failed), dict(flood), 0.4, 0.1)


def test_a_flood_is_held_against_the_same_gateway_without_one() -> None:
    told: dict[str, Any] = {
        "sent": 25_000,
        "answers": {"fallback": 20_000},
        "late": 0.003,
        "cpu": 3.0,
    }
    found = table(
        {
            ("on", 0.0): [lasting(0.004), lasting(0.002), lasting(0.006)],
            ("on", 2500.0): [lasting(0.008, 0.5, **told), lasting(0.006, **told)],
        }
    )
    page = StringIO()
    Console(width=160, file=page).print(found)
    calm, flooded = page.getvalue().splitlines()[-2:]
    assert calm.split()[:8] == ["on", "0/s", "2.0", "4.0", "2.0–6.0", "1.0", "0.0%", "0/3"]
    assert flooded.split() == [
        "on", "2500/s", "2.0", "7.0", "6.0–8.0", "1.8", "50.0%", "1/2", "1.0", "2000", "3.0", "0.40", "0.10",
        "0.30",
    ]  # fmt: skip


def test_delays_are_told_in_milliseconds() -> None:
    delays = [0.001 * each for each in range(200, 0, -1)]
    assert told(delays) == "p50 101.0 ms, p99 199.0 ms, max 200.0 ms"
    assert told([0.002]) == "p50 2.0 ms, p99 2.0 ms, max 2.0 ms"
