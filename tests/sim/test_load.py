"""The load generator: schedules, what is counted, and latencies that omit nothing."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.openai import replies
from extproc.openai.endpoints import Endpoint
from extproc.openai.requests import read
from extproc.sim.loadgen.http_client import Answer, Client
from extproc.sim.loadgen.load import (
    Kind,
    Latencies,
    Load,
    Traffic,
    kind_of,
    poisson,
)
from extproc.sim.loadgen.precise_loop import precise_loop

FINE = b'{"id":"chatcmpl-1","object":"chat.completion"}'


class ScriptedClient(Client):
    """A client without a network: each request takes its time, on a clock that nothing else moves."""

    def __init__(self, *takes: float, status: int = 200) -> None:
        self.now = 100.0
        super().__init__("http://127.0.0.1:1", clock=lambda: self.now)
        self.requests: list[tuple[bytes, bytes]] = []
        self._takes = itertools.cycle(takes)
        self._status = status

    def send(self, head: bytes, body: bytes, done: Callable[[Answer], None]) -> None:
        self.requests.append((head, body))
        self.now += next(self._takes)
        done(Answer(self._status, FINE, self.now - 0.25, self.now))


class SilentClient(ScriptedClient):
    """A client that answers only when it gives up."""

    def __init__(self) -> None:
        super().__init__(0.0)
        self.waiting: list[Callable[[Answer], None]] = []

    def send(self, head: bytes, body: bytes, done: Callable[[Answer], None]) -> None:
        self.waiting.append(done)

    def give_up(self, why: str) -> None:
        for done in self.waiting:
            done(Answer(0, b"", self.now, self.now, why))
        self.waiting.clear()


def one(name: str = "pay", weight: float = 1.0) -> Traffic:
    return Traffic(name, lambda _: b"{}", (("x-tenant-id", name),), weight)


def test_poisson_schedule_has_the_rate_and_random_gaps() -> None:
    times = list(poisson(rate=100, seconds=100, rng=Random(7)))
    assert times == sorted(times)
    assert 0 < times[0] < times[-1] < 100
    assert len(times) == pytest.approx(10_000, rel=0.03)
    gaps = [b - a for a, b in itertools.pairwise(times)]
    # Exponential gaps: the share of those over the mean is 1/e.
    assert sum(gap > 0.01 for gap in gaps) / len(gaps) == pytest.approx(1 / math.e, abs=0.02)


def test_the_same_seed_is_the_same_schedule() -> None:
    assert list(poisson(50, 1, Random(3))) == list(poisson(50, 1, Random(3)))


async def test_latency_counts_from_when_a_request_was_due() -> None:
    client = ScriptedClient(1.0)
    load = Load(client, [one()], Random(1))
    # Each request blocks for a second; the second is due after 0.5 s, the third after 1 s.
    await load.run([0.0, 0.5, 1.0], patience=0)
    tally = load.tallies["pay"]
    assert tally.sent == 3
    assert tally.lateness.percentiles(0, 50, 100) == (0.0, 0.5, 1.0)
    assert tally.total[Kind.ENGINE].percentiles(0, 50, 100) == (1.0, 1.5, 2.0)
    assert tally.first_byte[Kind.ENGINE].percentiles(0, 50, 100) == (0.75, 1.25, 1.75)


async def test_sending_does_not_wait_for_answers_and_patience_ends() -> None:
    client = SilentClient()
    load = Load(client, [one()], Random(1))
    await load.run([0.0, 0.0, 0.0], patience=0.01)
    tally = load.tallies["pay"]
    assert tally.sent == 3
    assert tally.answers == {Kind.ERROR: 3}
    assert tally.errors == {"no answer": 3}


async def test_errors_are_counted_by_what_they_were() -> None:
    load = Load(ScriptedClient(0.5, status=503), [one()], Random(1))
    await load.run([0.0, 0.0], patience=0)
    tally = load.tallies["pay"]
    assert tally.errors == {"HTTP 503": 2}
    assert len(tally.total[Kind.ENGINE]) == 0


async def test_a_mix_is_sent_in_proportion_with_each_callers_headers() -> None:
    client = ScriptedClient(0.0)
    load = Load(client, [one("pay", 20), one("marketing", 80)], Random(5))
    await load.run([0.0] * 1000, patience=0)
    assert load.tallies["pay"].sent == pytest.approx(200, abs=40)
    assert load.tallies["pay"].sent + load.tallies["marketing"].sent == 1000
    heads = [head for head, _ in client.requests]
    assert sum(b"x-tenant-id: pay\r\n" in head for head in heads) == load.tallies["pay"].sent


async def test_closed_loop_keeps_the_concurrency() -> None:
    client = SilentClient()
    load = Load(client, [one()], Random(1))
    saturating = asyncio.create_task(load.saturate(4, seconds=0.05))
    await asyncio.sleep(0)
    assert len(client.waiting) == 4
    client.now += 0.01
    client.give_up("answered")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(client.waiting) == 4
    client.now += 0.99  # the end: nothing more is sent
    client.give_up("answered")
    assert await saturating == pytest.approx(8.0)
    assert load.tallies["pay"].sent == 8


@given(st.lists(st.floats(0, 1e3), min_size=1), st.floats(0, 100))
def test_percentiles_are_measured_values(values: list[float], percent: float) -> None:
    (found,) = Latencies(values).percentiles(percent)
    assert found in values
    assert sum(value <= found for value in values) >= percent / 100 * len(values) - 1e-9


def test_percentiles() -> None:
    latencies = Latencies(range(1, 101))
    assert latencies.percentiles(0, 50, 99, 99.9, 100) == (1.0, 50.0, 99.0, 100.0, 100.0)
    assert latencies.recent(10).percentiles(0, 100) == (91.0, 100.0)
    assert math.isnan(Latencies().percentiles(50)[0])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "endpoint",
    [Endpoint.CHAT, Endpoint.COMPLETIONS, Endpoint.RESPONSES, Endpoint.MESSAGES],
)
def test_fallbacks_of_every_endpoint_are_known(endpoint: Endpoint, stream: bool) -> None:
    request = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "hello"}],
        "prompt": "hello",
        "input": "hello",
        "max_tokens": 16,
        "stream": stream,
    }
    reply = replies.fallback(
        read(endpoint, json.dumps(request).encode()),
        ident="0123",
        created=1_700_000_000,
        message="later",
        finish_reason="load_shedding_fallback",
        reason="kv_watermark",
        ticket=None,
        retry_after=15,
    )
    assert kind_of(Answer(200, reply.body[:2048], 0.0, 0.0)) is Kind.FALLBACK


def test_other_answers() -> None:
    assert kind_of(Answer(200, FINE, 0.0, 0.0)) is Kind.ENGINE
    assert kind_of(Answer(429, FINE, 0.0, 0.0)) is Kind.ERROR
    assert kind_of(Answer(200, FINE, 0.0, 0.0, "connection closed")) is Kind.ERROR


def test_precise_loop_runs_timers_in_order() -> None:
    async def timers() -> list[str]:
        fired: list[str] = []
        loop = asyncio.get_running_loop()
        loop.call_later(0.002, fired.append, "second")
        loop.call_later(0.0005, fired.append, "first")
        started = loop.time()
        await asyncio.sleep(0.003)
        assert loop.time() - started >= 0.003
        return fired

    with asyncio.Runner(loop_factory=precise_loop) as runner:
        assert runner.run(timers()) == ["first", "second"]
