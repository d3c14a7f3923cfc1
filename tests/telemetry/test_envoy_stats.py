"""The counts of Envoys: exact, whoever was there first, and whatever an Envoy answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from extproc.core.reasons import Reason
from extproc.core.valve import Shut
from extproc.telemetry import envoy_stats
from extproc.telemetry.envoy_stats import Counted, EnvoyStats, read
from extproc.telemetry.metrics import Metrics
from extproc.telemetry.recorder import Recorder
from extproc.telemetry.valve import ValveCollector
from tests.http_server import answering

PAGE = """\
# TYPE envoy_tidegate_valve_refused counter
envoy_tidegate_valve_refused{pool="m",class="P2",reason="kv_watermark"} 7
envoy_tidegate_valve_refused{pool="m",class="P2",reason="unheard_of"} 9
# TYPE envoy_other counter
envoy_other{pool="m"} 3
"""
KEY = ("m", "P2", Reason.KV_WATERMARK)


def test_a_page_is_read() -> None:
    assert read(PAGE) == {KEY: 7}
    assert read("") == {}
    with pytest.raises(ValueError, match=r"."):
        read("no page { at all")


def test_what_was_counted_before_us_is_not_ours() -> None:
    counted = Counted()
    assert counted.more({KEY: 7}) == {}
    assert counted.more({KEY: 7}) == {}
    assert counted.more({KEY: 9}) == {KEY: 2}


def test_an_envoy_that_came_after_us_starts_from_nothing() -> None:
    counted = Counted()
    counted.away()
    assert counted.more({KEY: 7}) == {KEY: 7}
    counted.away()
    assert counted.more({KEY: 8}) == {KEY: 1}


def test_an_envoy_that_was_started_anew_starts_from_nothing() -> None:
    counted, other = Counted(), ("m", "P1", Reason.FLOOD)
    counted.more({KEY: 7, other: 1})
    assert counted.more({other: 2}) == {other: 2}
    assert counted.more({KEY: 1, other: 3}) == {KEY: 1, other: 1}


@asynccontextmanager
async def admin(pages: list[str | int]) -> AsyncIterator[str]:
    """An Envoy's admin that gives one page after the other, the last one again and again."""

    async def answer(_: web.Request) -> web.Response:
        page = pages.pop(0) if len(pages) > 1 else pages[0]
        return web.Response(status=page) if isinstance(page, int) else web.Response(text=page)

    async with answering("GET", "/stats/prometheus", answer) as address:
        yield address


async def test_envoys_are_followed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "extproc")
    monkeypatch.setattr(envoy_stats, "INTERVAL", 0.001)
    heard: list[tuple[str, str, Reason, int]] = []
    done = asyncio.Event()

    def hear(pool: str, name: str, reason: Reason, count: int) -> None:
        heard.append((pool, name, reason, count))
        if count == 3:
            done.set()

    strange = PAGE.replace('pool="m"', 'pool="strange"').replace(" 7", " 8")
    pages: list[str | int] = [
        PAGE,
        503,
        "no page {",
        strange,
        PAGE.replace(" 7", " 9"),
        PAGE.replace(" 7", " 12"),
    ]
    async with admin(pages) as address:
        stats = EnvoyStats([address, "127.0.0.1:1"], hear, pools=["m"], classes=["P2"])
        running = asyncio.create_task(stats.run())
        await asyncio.wait_for(done.wait(), 5)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert heard[-1] == (*KEY, 3)
    assert {each[0] for each in heard} == {"m"}
    said = [
        (each.getMessage(), vars(each)["envoy"])
        for each in caplog.records
        if each.name.startswith("extproc")
    ]
    cannot = "an Envoy's counts cannot be read; what its valve refuses is not counted"
    assert sorted(said) == sorted(
        [
            (cannot, address),
            ("an Envoy's counts can be read again", address),
            (cannot, "127.0.0.1:1"),
        ]
    )


def test_what_envoys_refused_is_among_the_decisions() -> None:
    metrics, recorder = Metrics(["m"], ["P0", "P2"]), Recorder(float)
    metrics.counted("m", "P2", Reason.FLOOD, 5)
    recorder.counted("m", "P2", Reason.FLOOD, 5)
    sample = 'tidegate_decisions_total{class="P2",pool="m",reason="flood",verdict="shed"} 5.0'
    assert sample in metrics.render().decode()
    assert recorder.counts == {("m", "P2", "shed", "flood"): 5}


class Valve:
    """See `extproc.telemetry.valve.ValveState`."""

    streams = 2
    refused = {KEY: 7}  # noqa: RUF012

    @property
    def discovery(self) -> Valve:
        return self

    def shut(self) -> dict[tuple[str, str], Shut]:
        return {("m", "P2"): Shut(0.9, Reason.KV_WATERMARK)}


def test_the_page_shows_the_valve() -> None:
    metrics = Metrics(["m"], ["P0", "P1", "P2"])
    metrics.registry.register(ValveCollector(Valve(), ["m"], ["P1", "P2"]))
    page = metrics.render().decode()
    for sample in (
        'tidegate_valve_share{class="P1",pool="m"} 0.0',
        'tidegate_valve_share{class="P2",pool="m"} 0.9',
        'tidegate_valve_refused_total{class="P2",pool="m",reason="kv_watermark"} 7.0',
        "tidegate_valve_envoys 2.0",
    ):
        assert sample in page
