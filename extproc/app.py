"""Wires the rooms of the house together: from a configuration to a running Tidegate.

Rules this module keeps:

* It builds and connects; it decides nothing.
* Clock, wall clock and randomness are made here and handed on; no other module reaches for them.
* Everything that runs, runs in one task group; when serving ends, nothing is left over.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import random
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiohttp import web
from grpc import aio
from grpc_health.v1 import health_pb2

from extproc import contract, parts
from extproc.config import (
    Config,
    pool_limits,
    service_classes,
)
from extproc.control.levers import Levers
from extproc.control.operations import Operations
from extproc.control.room import ControlRoom, make_operations
from extproc.core.agents.rules import AgentGate
from extproc.core.breaker import Breaker, BreakerGate, Key
from extproc.core.capacity import Pool
from extproc.core.controller import Controller, Gate, RequestLimits
from extproc.core.metering import Meter
from extproc.core.modes import ModeGate
from extproc.core.outcomes import End, Outcome
from extproc.core.promises import Promise
from extproc.core.readings import Reading
from extproc.core.records import Ended, Observer, Observers
from extproc.edge import server
from extproc.edge.access_log import AccessLog
from extproc.edge.admission import Admission
from extproc.edge.agents import AgentDesk
from extproc.edge.endings import Endings
from extproc.edge.faults import FaultDesk
from extproc.edge.processor import Processor
from extproc.edge.pump import Pump
from extproc.edge.valve_desk import ValveDesk
from extproc.engines.fleet import Fleet
from extproc.quota.gates import QuotaGate, RateGate
from extproc.quota.meter import LocalMeter
from extproc.reloading import Reloading
from extproc.sharing.agreement import Agreement
from extproc.sharing.forwarding import Forwarder
from extproc.sharing.link import LinkDownError
from extproc.sharing.room import Sharing
from extproc.telemetry.agents import AgentCollector
from extproc.telemetry.breaker import BreakerCollector
from extproc.telemetry.decision_log import DecisionLog
from extproc.telemetry.envoy_stats import EnvoyStats
from extproc.telemetry.faults import FaultCollector
from extproc.telemetry.http import pages
from extproc.telemetry.ledger import LedgerCollector
from extproc.telemetry.metrics import LineCollector, Metrics, PoolCollector
from extproc.telemetry.recorder import Recorder
from extproc.telemetry.spending import MeterCollector, SharingCollector

if TYPE_CHECKING:
    from extproc.quota.outbox import Outbox
    from extproc.telemetry.tracing import Tracing

log = logging.getLogger(__name__)

DRAIN_SECONDS = 30.0
"""How long running exchanges may go on after a stop was asked for."""
LAST_RECORDS_SECONDS = 2.0
"""How long Envoy, or the Tidegate that it logs to, may take to tell the end of the last of them."""
LAST_BATCH_SECONDS = 4 * contract.LOG_INTERVAL
"""How long another batch of ends is waited for, others' by now, after which its stream can end."""


class EngineBooks:
    """Writes what the engines say into the pools' books; an `extproc.engines.listener.Listener`.

    ``changed`` is called when that may have made room, ``scraped`` with a pool of which an engine
    was read.
    """

    def __init__(
        self,
        pools: Mapping[str, Pool],
        clock: Callable[[], float],
        changed: Callable[[], None],
        scraped: Callable[[str], None],
    ) -> None:
        self._pools = pools
        self._clock = clock
        self._changed = changed
        self._scraped = scraped

    def joined(self, pool: str, endpoint: str) -> None:
        """An endpoint was discovered."""
        self._pools[pool].join(endpoint)
        self._changed()

    def left(self, pool: str, endpoint: str) -> None:
        """An endpoint is no longer listed."""
        self._pools[pool].leave(endpoint, self._clock())
        self._changed()

    def sending(self, pool: str, endpoint: str) -> None:
        """A scrape is about to be sent."""
        self._pools[pool].sending(endpoint, self._clock())

    def observed(self, pool: str, endpoint: str, reading: Reading, sent_at: float) -> None:
        """An endpoint was read."""
        self._pools[pool].observe(endpoint, reading, read_at=sent_at, now=self._clock())
        self._scraped(pool)

    def failed(self, pool: str, endpoint: str, problem: str) -> None:
        """An endpoint could not be read."""
        self._pools[pool].fail(endpoint, problem)

    def undiscovered(self, pool: str, problem: str) -> None:
        """A pool's endpoints could not be looked up; those that are known stay."""


class Ends:
    """Tells the controller, the breaker, the meter, the agents and observers how exchanges ended."""

    def __init__(
        self,
        controller: Controller,
        observer: Observer,
        breaker: Breaker | None,
        meter: Meter | None,
        desk: AgentDesk | None,
        clock: Callable[[], float],
    ) -> None:
        self._controller = controller
        self._observer = observer
        self._breaker = breaker
        self._meter = meter
        self._desk = desk
        self._clock = clock

    def ended(self, record: Ended) -> None:
        """An admitted exchange is over; records of pools that are not ours (any more) only count."""
        self._observer.ended(record)
        if self._desk is not None:
            self._desk.ended(record)
        if record.pool in self._controller.pools:
            end = End(
                record.outcome, record.prompt_tokens, record.completion_tokens, record.seconds
            )
            if self._meter is not None:
                output = self._controller.output_in(record.id, record.pool, record.seconds)
                self._meter.settle(record.id, end, output, self._clock())
            promise = self._controller.settle(record.id, record.pool, end)
            if self._breaker is not None and promise is not None:
                self._measure(self._breaker, promise, record)

    def _measure(self, breaker: Breaker, promise: Promise, record: Ended) -> None:
        """Tell the breaker the length of an output; what was cut short says nothing of it."""
        if record.outcome is Outcome.COMPLETED and record.completion_tokens:
            breaker.ended(
                Key(record.pool, record.tenant, promise.demand.task),
                max(1, round(record.completion_tokens / promise.demand.choices)),
                admitted_at=promise.admitted_at,
                now=self._clock(),
            )


@dataclass(frozen=True)
class Tidegate:
    """A wired Tidegate that is not yet running."""

    config: Config
    pools: Mapping[str, Pool]
    metrics: Metrics
    processor: Processor
    admission: Admission
    pump: Pump
    endings: Endings
    meter: LocalMeter | None
    sharing: Sharing | None
    agreement: Agreement | None
    forwarder: Forwarder | None
    outbox: Outbox | None
    access_log: AccessLog
    fleet: Fleet
    recorder: Recorder | None
    decision_log: DecisionLog | None
    tracing: Tracing | None
    control: ControlRoom | None
    valve: ValveDesk | None
    envoy_stats: EnvoyStats | None
    levers: Levers
    operations: Operations


def build(config: Config, secret: bytes | None = None) -> Tidegate:
    """Return a wired Tidegate.

    Args:
        config: what it is made from.
        secret: signs tickets where the configuration names no key; None for one of this process.

    Raises:
        ConfigError: a key file cannot be used.
        QuotaError: a plan has a quota, and what the ledger needs is not installed.
    """
    clock, rng = time.monotonic, random.Random()  # noqa: S311 (jitter and ids, no secrets)
    name = parts.name(rng)
    classes = service_classes(config)
    pools = {name: Pool(name, pool_limits(pool), classes) for name, pool in config.pools.items()}
    metrics = Metrics(config.pools, config.classes)
    lines = parts.lines(config, classes, secret)
    metrics.registry.register(PoolCollector(pools, clock))
    metrics.registry.register(LineCollector(lines, classes))
    breaker = parts.breaker(config)
    decision_log = parts.decision_log(config)
    tracing = parts.tracing(config, time.time)
    noting = config.control.enabled or decision_log is not None
    recorder = Recorder(time.time) if noting or tracing is not None else None
    mode = ModeGate(classes)
    valve = parts.valve(config, mode, pools, clock, metrics, recorder)
    heard = (metrics, recorder, tracing, valve)
    observer = Observers(tuple(each for each in heard if each is not None))
    pump = Pump(clock)
    desk = parts.desk(config, clock, pump)
    gates: list[Gate] = [RequestLimits(config.requests.max_call)]
    if config.control.enabled or config.state.redis is not None:
        gates.insert(0, mode)
    if desk is not None:
        gates.append(AgentGate(desk.agents))
        metrics.registry.register(AgentCollector(desk.agents))
    if breaker is not None:
        gates.append(BreakerGate(breaker))
        metrics.registry.register(BreakerCollector(breaker))
    outbox = parts.outbox(config)
    if outbox is not None:
        metrics.registry.register(LedgerCollector(outbox))
    sharing = parts.sharing(config, name, pools, outbox, clock, rng)
    meter: LocalMeter | None = None
    if config.plans:
        meter = LocalMeter(outbox, time.time) if sharing is None else sharing.meter
        metrics.registry.register(MeterCollector(meter))
    if meter is not None:
        gates += (RateGate(meter), QuotaGate(meter))
    controller = Controller(pools, gates, lines)
    faults = FaultDesk(pass_on=config.requests.faults == "pass")
    metrics.registry.register(FaultCollector(faults.counts))
    endings = Endings(Ends(controller, observer, breaker, meter, desk, clock).ended, clock)
    forwarder: Forwarder | None = None
    if sharing is not None:
        link, members = sharing.link, sharing.members
        forwarder = Forwarder(link, name, endings.logged, others=lambda: members.count, clock=clock)
        endings.late = lambda: forwarder.late
        metrics.registry.register(SharingCollector(sharing, forwarder))
    terms_of = partial(parts.terms, reported=parts.load_reports(pools, clock))
    admission = Admission(
        terms=terms_of(config),
        controller=controller,
        max_body=config.requests.max_call,
        pass_unreadable=config.requests.unreadable == "pass",
        observer=observer if len(observer.each) > 1 else metrics,
        endings=endings,
        meter=meter,
        new_id=parts.id_source(name),
        clock=clock,
        wall_clock=time.time,
        bell=pump.ring,
        breaker=breaker,
        desk=desk,
        claims=None if sharing is None else sharing.claims,
        longest_wait=contract.longest_wait(config),
        faults=faults,
    )
    admission.noting, admission.tracing = noting, tracing is not None
    books = EngineBooks(pools, clock, admission.capacity_changed, admission.scraped)
    control: ControlRoom | None = None
    agreement: Agreement | None = None
    levers = Levers(
        config,
        pools=pools,
        lines=lines,
        gate=mode,
        admission=admission,
        terms=terms_of,
        followers=parts.followers(desk, outbox),
    )
    operations = make_operations(config, levers, time.time)
    if sharing is not None:
        agreement = Agreement(sharing.link, "settings", operations.mine, operations.adopt)
        operations.publish = agreement.publish
    if recorder is not None and config.control.enabled:
        control = ControlRoom(
            config,
            levers,
            operations,
            recorder,
            pools=pools,
            lines=lines,
            heard=books.observed,
            clock=clock,
            wall_clock=time.time,
        )
        levers.followers += (control.follow,)
    return Tidegate(
        config=config,
        pools=pools,
        metrics=metrics,
        processor=Processor(admission),
        admission=admission,
        pump=pump,
        endings=endings,
        meter=meter,
        outbox=outbox,
        sharing=sharing,
        agreement=agreement,
        forwarder=forwarder,
        access_log=AccessLog(
            endings.logged if forwarder is None else forwarder.logged,
            None if valve is None else valve.sampled,
        ),
        fleet=Fleet(config.pools, books, clock=clock, rng=rng),
        recorder=recorder,
        decision_log=decision_log,
        tracing=tracing,
        control=control,
        valve=valve,
        envoy_stats=None if valve is None else parts.envoy_stats(config, valve),
        levers=levers,
        operations=operations,
    )


def reloading(tidegate: Tidegate, file: Path, read: Callable[[], Config]) -> Reloading:
    """Return what takes over a file that ``read`` reads, when it has changed."""
    return Reloading(file, read, tidegate.levers, tidegate.operations, tidegate.metrics.reloaded)


async def serve(
    tidegate: Tidegate,
    stop: asyncio.Event,
    started: Callable[[], None],
    pages_on: socket.socket | None = None,
    reloading: Reloading | None = None,
) -> None:
    """Run until ``stop`` is set, then drain; ``started`` is called when Envoy can connect.

    ``pages_on`` listens for those who ask for pages, in place of `listen.http`; ``reloading`` takes
    over a configuration file that has changed.

    Raises:
        CannotListenError: an address cannot be bound.
        QuotaError: the outbox's file cannot be used.
    """
    listen = tidegate.config.listen
    handlers = [tidegate.processor.handler(), tidegate.access_log.handler()]
    if tidegate.valve is not None:
        handlers.append(tidegate.valve.discovery.handler())
    grpc_server, health = server.build(
        handlers, listen.processor, max_body=tidegate.config.requests.max_body
    )

    async def metrics() -> bytes:
        return tidegate.metrics.render()

    application = pages(metrics=metrics, ready=lambda: not stop.is_set())
    control = tidegate.control
    api = contextlib.nullcontext() if control is None else control.serving()
    outbox, meter = tidegate.outbox, tidegate.meter
    ledger = contextlib.nullcontext() if not (outbox and meter) else outbox.carrying(meter.holds)
    async with _http(application, listen.http, pages_on), api, ledger, asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(each) for each in _background(tidegate)]
        if reloading is not None:
            running.append(tasks.create_task(reloading.run()))
        await grpc_server.start()
        await health.set("", health_pb2.HealthCheckResponse.SERVING)
        gc.collect()
        gc.freeze()  # what is wired now lives for ever: no need to look at it in each collection
        started()
        try:
            await stop.wait()
        finally:
            await health.enter_graceful_shutdown()
            if control is not None:
                control.drain()
            log.info("draining", extra={"streams": tidegate.processor.streams})
            await asyncio.sleep(listen.withdraw)
            await _drain(tidegate, grpc_server)
            if tidegate.forwarder is not None:
                with contextlib.suppress(LinkDownError):
                    await tidegate.forwarder.exchange()
            tidegate.endings.flush()
            for each in running:
                each.cancel()


def _background(tidegate: Tidegate) -> Iterator[Coroutine[Any, Any, None]]:
    """Yield what runs beside the server, until it is cancelled."""
    yield tidegate.fleet.run()
    yield tidegate.pump.run(tidegate.admission.pump)
    yield tidegate.endings.run()
    if tidegate.recorder is not None:
        yield _record(tidegate.recorder, tidegate.decision_log, tidegate.tracing)
    beside = (tidegate.sharing, tidegate.agreement, tidegate.forwarder)
    for each in (*beside, tidegate.valve, tidegate.envoy_stats):
        if each is not None:
            yield each.run()


async def _record(
    recorder: Recorder, decision_log: DecisionLog | None, tracing: Tracing | None
) -> None:
    """Remember decisions, and write and trace them where that is wanted, until cancelled."""
    with contextlib.ExitStack() as stack:
        if decision_log is not None:
            stack.enter_context(decision_log.writing())
            recorder.hand_to(decision_log.take)
        if tracing is not None:
            stack.enter_context(tracing.working())
            recorder.hand_to(tracing.take)
        await recorder.run()


async def _drain(tidegate: Tidegate, grpc_server: aio.Server) -> None:
    """Let running exchanges end, and hear how.

    Envoy may tell another Tidegate of the last ends, which hands them over; and us of the others' ends,
    which go on after ours.
    """
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(grpc_server.stop(DRAIN_SECONDS))  # from here on nothing new comes
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(tidegate.processor.idle(), DRAIN_SECONDS)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(tidegate.endings.all_told(), LAST_RECORDS_SECONDS)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(tidegate.access_log.leave(), LAST_BATCH_SECONDS)
        await grpc_server.stop(0)


@contextlib.asynccontextmanager
async def _http(
    application: web.Application, address: str, bound: socket.socket | None
) -> AsyncIterator[None]:
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    try:
        host, _, port = address.rpartition(":")
        try:
            if bound is not None:
                await web.SockSite(runner, bound).start()
            else:
                await web.TCPSite(runner, host.strip("[]"), int(port)).start()
        except OSError as error:
            raise server.CannotListenError(address, "listen.http") from error
        yield
    finally:
        await runner.cleanup()
