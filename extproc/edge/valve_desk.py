"""The valve's hands: hears every verdict, and tells Envoys some times a second what to refuse themselves.

Rules this module keeps:

* Hearing of a verdict is one count; everything else is done in turns.
* In ``shadow`` mode the valve is open: nothing is acted upon.
* What Envoy refused comes back in two ways: as an exact number (`counted`), and as a record of about so
  many a second as were asked for (`sampled`). Only the numbers are added up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from extproc import contract
from extproc.core.capacity import Pool
from extproc.core.controller import Action, Verdict
from extproc.core.modes import Mode, ModeGate
from extproc.core.reasons import Reason
from extproc.core.records import Decided, Ended, WaitEnd
from extproc.core.valve import Shut, Valve
from extproc.edge.runtime_discovery import RuntimeDiscovery

TURN_SECONDS = 0.05
"""Between two turns: so long a flood goes on before anything is done about it."""


class Tally(Protocol):
    """Adds up what Envoy refused."""

    def counted(self, pool: str, service_class: str, reason: Reason, count: int) -> None:
        """So many more were refused."""
        ...


class ValveDesk:
    """Turns the valve; an `extproc.core.records.Observer`.

    Args:
        valve: decides.
        gate: knows the mode.
        pools: know which classes are closed.
        sampled: how many refusals a second are told of one by one, about.
        clock: in seconds.
        tallies: hear the exact numbers.
        record: takes the record of a refusal, where somebody wants it.

    Attributes:
        discovery: serves Envoys.
        refused: by pool, class and reason, since the start.
    """

    def __init__(
        self,
        valve: Valve,
        gate: ModeGate,
        pools: Mapping[str, Pool],
        *,
        sampled: float,
        clock: Callable[[], float],
        tallies: tuple[Tally, ...] = (),
        record: Callable[[Decided], None] | None = None,
    ) -> None:
        self.discovery = RuntimeDiscovery()
        self.refused: dict[tuple[str, str, Reason], int] = {}
        self._valve = valve
        self._gate = gate
        self._pools = pools
        self._sampled = sampled
        self._clock = clock
        self._tallies = tallies
        self._record = record

    def decided(self, record: Decided) -> None:
        """A verdict was given."""
        if not record.shadow:
            self._valve.decided(record.pool, record.service_class, record.verdict.reason)

    def waited(self, pool: str, service_class: str, end: WaitEnd, seconds: float) -> None:
        """A call has left the queue; its decision is heard of by itself."""

    def ended(self, record: Ended) -> None:
        """An admitted exchange is over."""

    async def run(self) -> None:
        """Turn until cancelled."""
        while True:
            self.turn()
            await asyncio.sleep(TURN_SECONDS)

    def turn(self) -> None:
        """Look at what was decided, and tell Envoys."""
        now = self._clock()
        shut = self._valve.turn(now, dict(self._closed(now)))
        layer: dict[str, float] = {}
        if self._gate.mode is not Mode.SHADOW:
            layer = {
                contract.valve_key(name, _known(each.reason), pool): each.share
                for (pool, name), each in shut.items()
            }
            layer[contract.VALVE_FIRST] = 1.0
            layer[contract.VALVE_SAMPLED] = self._sampling(shut)
        self.discovery.publish({key: round(share, 3) for key, share in layer.items()})

    def shut(self) -> dict[tuple[str, str], Shut]:
        """Return what Envoys refuse, by pool and class."""
        return {} if self._gate.mode is Mode.SHADOW else self._valve.shut()

    def counted(self, pool: str, service_class: str, reason: Reason, count: int) -> None:
        """Hear that Envoys refused so many more."""
        key = pool, service_class, reason
        self.refused[key] = self.refused.get(key, 0) + count
        for tally in self._tallies:
            tally.counted(pool, service_class, reason, count)

    def sampled(self, message: Any) -> None:
        """Hear of refusals that Envoy logged; a ``StreamAccessLogsMessage``."""
        if self._record is not None:
            now = self._clock()
            for told, request_id in _refusals(message):
                pool, reason = self._pools.get(told["pool"]), _reason(told["reason"])
                if pool is not None and reason is not None:
                    self._record(
                        _record(told, request_id, Verdict(Action.SHED, reason, pool.load(now)))
                    )

    def _closed(self, now: float) -> Iterator[tuple[tuple[str, str], Reason]]:
        closed, by_mode = set(self._gate.closed()), Reason.MODE_TRANSACTIONS_ONLY
        if self._gate.mode is Mode.PROTECT:
            by_mode = Reason.MODE_PROTECT
        for name, pool in self._pools.items():
            for each in pool.classes:
                if each.name in closed:
                    yield (name, each.name), by_mode
                elif pool.is_closed(each, now):
                    yield (name, each.name), Reason.KV_WATERMARK

    def _sampling(self, shut: Mapping[tuple[str, str], Shut]) -> float:
        shares = {key: each.share for key, each in shut.items()}
        rates = self._valve.rates()
        refused = sum(rate * shares.get((pool, name), 0.0) for pool, name, rate in rates)
        return min(1.0, self._sampled / refused) if refused else 1.0


def _known(reason: Reason) -> Reason:
    return reason if reason in contract.VALVE_REASONS else Reason.FLOOD


def _reason(name: str) -> Reason | None:
    return next((each for each in contract.VALVE_REASONS if each.value == name), None)


_TOLD = frozenset(("id", "tenant", "class", "pool", "endpoint", "reason"))


def _refusals(message: Any) -> Iterator[tuple[dict[str, str], str]]:
    """Yield what is told of each refusal, and Envoy's id of the request."""
    for entry in message.http_logs.log_entry:
        namespaces = entry.common_properties.metadata.filter_metadata
        if contract.VALVE_NAMESPACE in namespaces:
            fields = namespaces[contract.VALVE_NAMESPACE].fields
            told = {name: value.string_value for name, value in fields.items()}
            if told.keys() >= _TOLD:
                yield told, entry.request.request_id


def _record(told: Mapping[str, str], request_id: str, verdict: Verdict) -> Decided:
    return Decided(
        id=told["id"],
        request_id=request_id,
        pool=told["pool"],
        endpoint=told["endpoint"],
        tenant=told["tenant"],
        service_class=told["class"],
        task="",
        prompt_tokens=0,
        max_output=None,
        verdict=verdict,
        seconds=0.0,
        by_envoy=True,
    )
