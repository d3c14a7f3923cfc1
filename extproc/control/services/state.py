"""What this Tidegate sees at the moment.

Rule this module keeps: however many watch, the state is made once in `SHORTEST` seconds, because making
it takes the time of the loop that decides.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass

from extproc.control.operations import Operations
from extproc.control.pb import state_pb2, state_pb2_grpc
from extproc.control.services.convert import Context, mode_state, timestamp
from extproc.core.capacity import Endpoint, Pool
from extproc.core.controller import Line
from extproc.core.modes import ModeGate
from extproc.telemetry.recorder import Recorder

SHORTEST, USUAL, LONGEST = 0.2, 1.0, 60.0
"""Seconds between two states that a watcher may ask for."""


@dataclass(frozen=True)
class View:
    """What the state is made of.

    Attributes:
        pools, lines: by name.
        gate: knows the mode.
        recorder: counts decisions.
        version, instance: which Tidegate this is.
        clock: the pools' clock.
        wall_clock: Unix time.
        started: when it started, on ``clock``.
        draining: says whether a stop was asked for.
    """

    pools: Mapping[str, Pool]
    lines: Mapping[str, Line]
    gate: ModeGate
    recorder: Recorder
    version: str
    instance: str
    clock: Callable[[], float]
    wall_clock: Callable[[], float]
    started: float
    draining: Callable[[], bool]


class StateService(state_pb2_grpc.StateServiceServicer):
    """Serves ``tidegate.v1.StateService``."""

    def __init__(self, operations: Operations, view: View) -> None:
        self._operations = operations
        self._view = view
        self._last: tuple[float, int, state_pb2.State] = (-math.inf, -1, state_pb2.State())

    async def GetState(
        self, request: state_pb2.GetStateRequest, context: Context
    ) -> state_pb2.State:
        """Tell the state."""
        return self._state()

    async def WatchState(
        self, request: state_pb2.WatchStateRequest, context: Context
    ) -> AsyncIterator[state_pb2.State]:
        """Send it again and again."""
        wanted = request.interval_seconds if request.HasField("interval_seconds") else USUAL
        interval = min(LONGEST, max(SHORTEST, wanted))  # where it is no number: SHORTEST
        async for _ in self._operations.watch(interval):
            yield self._state()

    def _state(self) -> state_pb2.State:
        now, revision = self._view.clock(), self._operations.settings.revision
        made, of_revision, state = self._last
        if now - made >= SHORTEST / 2 or revision != of_revision:
            state = make_state(self._operations, self._view)
            self._last = now, revision, state
        return state


def make_state(operations: Operations, view: View) -> state_pb2.State:
    """Return the state of this moment."""
    now = view.clock()
    return state_pb2.State(
        at=timestamp(view.wall_clock()),
        version=view.version,
        instance=view.instance,
        uptime_seconds=now - view.started,
        mode=mode_state(operations.settings.mode, view.gate),
        classes=[
            state_pb2.ClassInfo(name=each.name, strict=each.strict, evictable=each.evictable)
            for each in view.gate.classes
        ],
        pools=[_pool(pool, view, now) for pool in view.pools.values()],
        draining=view.draining(),
    )


def _pool(pool: Pool, view: View, now: float) -> state_pb2.PoolState:
    load, line = pool.load(now), view.lines.get(pool.name)
    return state_pb2.PoolState(
        name=pool.name,
        free_observed=load.free,
        free_predicted=load.predicted,
        tightening=load.tightening,
        in_flight=load.in_flight,
        max_concurrency=pool.limits.max_concurrency,
        queued=len(line.queue) if line else 0,
        queued_bytes=line.queue.bytes if line else 0,
        classes=_classes(pool, line, view, now),
        endpoints=[_endpoint(each, pool, now) for each in pool.endpoints.values()],
    )


def _classes(pool: Pool, line: Line | None, view: View, now: float) -> list[state_pb2.ClassState]:
    running = Counter(each.demand.service_class.name for each in pool.promises())
    closed_by_mode = view.gate.closed()
    counts: dict[str, list[state_pb2.Count]] = {}
    for (name, service_class, verdict, reason), count in view.recorder.counts.items():
        if name == pool.name:
            told = state_pb2.Count(verdict=verdict, reason=reason, count=count)
            counts.setdefault(service_class, []).append(told)
    states = []
    for each in pool.classes:
        oldest = line.queue.oldest(each) if line else None
        states.append(
            state_pb2.ClassState(
                name=each.name,
                closed=pool.is_closed(each, now),
                closed_by_mode=each.name in closed_by_mode,
                close=each.close,
                open=each.open,
                concurrency_limit=pool.concurrency_limit(each),
                in_flight=running[each.name],
                queued=line.queue.depth(each) if line else 0,
                longest_wait_seconds=None if oldest is None else now - oldest,
                decisions=counts.get(each.name, ()),
            )
        )
    return states


def _endpoint(state: Endpoint, pool: Pool, now: float) -> state_pb2.EndpointState:
    reading = state.reading
    freshness = f"FRESHNESS_{pool.freshness(state.name, now).name}"
    return state_pb2.EndpointState(
        address=state.name,
        freshness=state_pb2.Freshness.Value(freshness),
        reading_age_seconds=None if reading is None else state.age(now),
        kv_usage=None if reading is None else reading.kv_usage,
        running=None if reading is None else reading.running,
        waiting=None if reading is None else reading.waiting,
        capacity_tokens=state.capacity,
        promised_tokens=state.promises.peak,
        bias_tokens=state.bias,
        in_flight=len(state.promises),
        down=state.down,
        problem=state.problem or "",
    )
