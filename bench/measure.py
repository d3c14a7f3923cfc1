"""The measurements.

Rules this module keeps:

* Load is open loop with random gaps (independent callers) unless a closed loop is asked for.
* Every answer of a measurement must be of the kind that is measured; anything else is an error.
* What is compared takes turns, in changing order, so that drift of the machine favours nobody.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

import psutil

from bench.stand import TENANT_HEADER, Gateway
from extproc.sim.loadgen.http_client import Client
from extproc.sim.loadgen.load import Kind, Load, Tally, Traffic, poisson

BODY_BYTES = 2048
PATIENCE = 30.0
_CONNECTIONS = 32

_T = TypeVar("_T")


class WrongAnswerError(RuntimeError):
    """Something else was answered than what is measured."""

    def __init__(self, gateway: Gateway, tally: Tally, expected: Kind) -> None:
        answers = {kind.value: count for kind, count in tally.answers.items()}
        super().__init__(
            f"{gateway.url}: expected only answers by {expected.value}, got {answers}"
            f" {dict(tally.errors)}"
        )


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds, from when a request was due; ``late``: how late requests left, p99."""

    p50: float
    p99: float
    worst: float
    late: float


class Bench:
    """Runs load against gateways.

    Args:
        clock: seconds, monotonic.
        rng: when requests are sent.
    """

    def __init__(self, clock: Callable[[], float], rng: Random) -> None:
        self.clock = clock
        self._rng = rng
        self._body = chat_body(BODY_BYTES)

    async def latency(self, gateway: Gateway, tenant: str, rate: float, seconds: float) -> Latency:
        """Return how long answers take at a rate."""
        tally = await self.load(gateway, tenant, rate, seconds)
        return latency_of(tally, gateway.answers[tenant])

    async def cpu(self, gateway: Gateway, tenant: str, rate: float, seconds: float) -> float:
        """Return the CPU seconds per exchange of the whole processor, its idle work included."""
        process = psutil.Process(gateway.processor)
        before = cpu_seconds(process)
        tally = await self.load(gateway, tenant, rate, seconds)
        return (cpu_seconds(process) - before) / tally.sent

    async def idle_cpu(self, gateway: Gateway, seconds: float) -> float:
        """Return the CPU seconds per second that the processor spends without any exchange."""
        process = psutil.Process(gateway.processor)
        before = cpu_seconds(process)
        await asyncio.sleep(seconds)
        return (cpu_seconds(process) - before) / seconds

    async def saturation(
        self, gateway: Gateway, tenant: str, concurrency: int, seconds: float
    ) -> float:
        """Return the answers per second that a closed loop gets."""
        async with self._client(gateway) as client:
            await client.connect(concurrency)
            load = self._mix(client, gateway, tenant)
            rate = await load.saturate(concurrency, seconds)
        self._check(gateway, tenant, load)
        return rate

    async def tally(self, gateway: Gateway, tenant: str, rate: float, seconds: float) -> Tally:
        """Return what comes of calls at a rate, whoever answers them."""
        return (await self._sent(gateway, tenant, rate, seconds)).tallies[tenant]

    async def load(self, gateway: Gateway, tenant: str, rate: float, seconds: float) -> Tally:
        """Return what comes of calls at a rate, all of them answered as they should be.

        Raises:
            WrongAnswerError: some were not.
        """
        return self._check(gateway, tenant, await self._sent(gateway, tenant, rate, seconds))

    async def _sent(self, gateway: Gateway, tenant: str, rate: float, seconds: float) -> Load:
        async with self._client(gateway) as client:
            await client.connect(_CONNECTIONS)
            load = self._mix(client, gateway, tenant)
            await load.run(poisson(rate, seconds, self._rng), patience=PATIENCE)
        return load

    def _client(self, gateway: Gateway) -> Client:
        return Client(gateway.url, clock=self.clock)

    def _mix(self, client: Client, gateway: Gateway, tenant: str) -> Load:
        headers = ((TENANT_HEADER, tenant), *gateway.headers)
        traffic = Traffic(tenant, lambda _: self._body, headers)
        return Load(client, [traffic], self._rng)

    def _check(self, gateway: Gateway, tenant: str, load: Load) -> Tally:
        tally = load.tallies[tenant]
        expected = gateway.answers[tenant]
        if tally.answers[expected] != tally.sent:
            raise WrongAnswerError(gateway, tally, expected)
        return tally


def latency_of(tally: Tally, kind: Kind) -> Latency:
    """Return how long answers of a kind took."""
    return Latency(*tally.total[kind].percentiles(50, 99, 100), *tally.lateness.percentiles(99))


async def in_turn(rounds: int, measures: Sequence[Callable[[], Awaitable[_T]]]) -> list[list[_T]]:
    """Return what each measure gives in each round; every other round goes backwards."""
    results: list[list[_T]] = [[] for _ in measures]
    for number in range(rounds):
        order = list(zip(measures, results, strict=True))
        for measure, kept in order[:: -1 if number % 2 else 1]:
            kept.append(await measure())
    return results


def chat_body(length: int) -> bytes:
    """Return a chat request of exactly this many bytes."""

    def body(text: str) -> bytes:
        message = {"role": "user", "content": text}
        request = {"model": "bench", "messages": [message], "max_tokens": 512}
        return json.dumps(request).encode()

    return body(("word " * length)[: length - len(body(""))])


def cpu_of_all(pids: Iterable[int]) -> float:
    """Return the CPU seconds that processes and their children have used."""
    return sum(cpu_seconds(each) for each in _with_children(pids))


def memory_of_all(pids: Iterable[int]) -> float:
    """Return the resident MiB of processes and their children."""
    return sum(each.memory_info().rss for each in _with_children(pids)) / (1 << 20)


def _with_children(pids: Iterable[int]) -> Iterator[psutil.Process]:
    for pid in pids:
        process = psutil.Process(pid)
        yield process
        yield from process.children(recursive=True)


def cpu_seconds(process: psutil.Process) -> float:
    """Return the user and system time that a process has used."""
    times = process.cpu_times()
    return float(times.user + times.system)
