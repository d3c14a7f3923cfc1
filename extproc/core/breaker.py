"""The output-length breaker: who suddenly makes the engines write far more than usual is held back.

Rules this module keeps:

* A tenant's task is measured against its own baseline (`baselines`) only: a task that is always long
  is not a rise. What it takes to trip: evidence over `Rules.alarm`, from several calls, over at least
  `Rules.sustain` seconds, and recent outputs that are longer by the factor `Rules.rise`.
* It degrades before it refuses: first outputs are clamped, and only what stays long under the clamp
  is shed. Strict classes are clamped, never shed.
* How it moves between states is a table, `TRANSITIONS`; what is not in it changes nothing.
* A probe's place is given back however the probe ends: completed, cancelled, or without a record. An
  end counts as evidence only if its call was let in under the present state.
* It cannot get stuck: without evidence it falls back towards closed, and what lasts for
  `Rules.relearn` is the new normal.
* Memory is bounded, whatever tenants there are: the baseline unused for longest goes first.

::

    CLOSED ──risen──► CLAMPED ──risen──► OPEN ──elapsed──► HALF_OPEN ──risen──► OPEN, twice as long
       ▲                │ normal, silent              silent │   │ normal
       └────────────────┘◄───────────────────────────────────┘   └──► CLOSED       any ──relearned──► CLOSED
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

from extproc.core.baselines import Baseline, log_length
from extproc.core.capacity import Pool
from extproc.core.classes import Classification
from extproc.core.controller import Candidate, Refusal
from extproc.core.reasons import Reason

CAPACITY = 16_384
"""Tenants' tasks that are remembered, and as many again that have tripped."""
LEAST_CALLS = 8
"""One call is at most this part of what it takes to trip."""
SURE = math.log(99.0)
"""Evidence at which a tripped breaker decides that lengths are normal, or still risen: Wald's
sequential test (Annals of Mathematical Statistics 16, 1945) with 1 % of errors of either kind."""
RECENT = 1.0 / 16.0
"""Gain of the average of recent lengths: it remembers some sixteen calls."""
LEAST_PROBES = 3
"""One call is at most this part of that."""
SILENCE = 60.0
"""Seconds without any evidence after which a tripped breaker falls back towards closed."""


class State(StrEnum):
    """What is done about calls."""

    CLOSED = "closed"
    CLAMPED = "clamped"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Signal(StrEnum):
    """What moves a breaker."""

    RISEN = "risen"
    NORMAL = "normal"
    ELAPSED = "elapsed"
    SILENT = "silent"
    RELEARNED = "relearned"


TRANSITIONS: Mapping[tuple[State, Signal], State] = MappingProxyType(
    {
        (State.CLOSED, Signal.RISEN): State.CLAMPED,
        (State.CLAMPED, Signal.RISEN): State.OPEN,
        (State.CLAMPED, Signal.NORMAL): State.CLOSED,
        (State.CLAMPED, Signal.SILENT): State.CLOSED,
        (State.CLAMPED, Signal.RELEARNED): State.CLOSED,
        (State.OPEN, Signal.ELAPSED): State.HALF_OPEN,
        (State.OPEN, Signal.RELEARNED): State.CLOSED,
        (State.HALF_OPEN, Signal.RISEN): State.OPEN,
        (State.HALF_OPEN, Signal.NORMAL): State.CLOSED,
        (State.HALF_OPEN, Signal.SILENT): State.CLAMPED,
        (State.HALF_OPEN, Signal.RELEARNED): State.CLOSED,
    }
)


@dataclass(frozen=True, slots=True)
class Rules:
    """When to trip and for how long; times in seconds.

    Attributes:
        rise: factor on the usual length that counts as risen, > 1.
        alarm: calls between two false alarms, at least, where lengths are log-normal; > 1.
        sustain: how long a rise must have lasted.
        clamp_for: how long outputs are clamped before calls may be shed.
        open_for: how long calls are shed before a probe; doubled each time, up to ``longest``.
        longest: see ``open_for``.
        probes: calls that may be in flight while half open.
        relearn: how long a rise lasts before it is the new normal.
    """

    rise: float = 2.0
    alarm: float = 1e6
    sustain: float = 10.0
    clamp_for: float = 30.0
    open_for: float = 30.0
    longest: float = 600.0
    probes: int = 3
    relearn: float = 3600.0


class Key(NamedTuple):
    """Whose lengths are compared with one another: those of a tenant's task on one model."""

    pool: str
    tenant: str
    task: str


@dataclass(frozen=True, slots=True)
class Held:
    """Why a call is held back: the average length that is allowed, and the recent one, in tokens."""

    allowed: float
    recent: float


class Meter:
    """What is known of one key.

    Attributes:
        state: what is done about its calls.
        since: when the state began.
        tripped_at: when it left CLOSED.
        evidence: for a rise (`baselines`), in the present state.
        recent: average of the logarithms of recent lengths; 0 where there was none.
        risen_at: when the evidence last left 0: the estimate of when the rise began.
        heard_at: when the last end counted.
        trips: times in a row that it opened.
        probes: exchanges that are in flight as probes.
    """

    __slots__ = (
        *("baseline", "evidence", "heard_at", "probes", "recent"),
        *("risen_at", "since", "state", "tripped_at", "trips"),
    )

    def __init__(self) -> None:
        self.baseline = Baseline()
        self.state = State.CLOSED
        self.since = self.tripped_at = self.risen_at = self.heard_at = -math.inf
        self.evidence = 0.0
        self.recent = 0.0
        self.trips = 0
        self.probes = 0

    def __repr__(self) -> str:
        return f"<Meter {self.state.value}: {self.baseline!r}, evidence {self.evidence:.1f}>"


class Breaker:
    """The breakers of all tenants and tasks.

    Attributes:
        entered: how often each state was entered.
    """

    def __init__(self, rules: Rules, *, capacity: int = CAPACITY) -> None:
        self.rules = rules
        self.entered: Counter[State] = Counter()
        self._capacity = capacity
        self._closed: OrderedDict[Key, Meter] = OrderedDict()
        self._tripped: OrderedDict[Key, Meter] = OrderedDict()
        self._probes: dict[str, Meter] = {}

    def __repr__(self) -> str:
        return f"<Breaker: {len(self._closed)} closed, {len(self._tripped)} tripped>"

    def __len__(self) -> int:
        return len(self._closed) + len(self._tripped)

    @property
    def idle(self) -> bool:
        """Whether nothing is held back; then neither `limit` nor `admit` need be asked."""
        return not self._tripped

    def tripped(self) -> Iterator[tuple[Key, State]]:
        """Yield what is held back, the longest tripped first."""
        yield from ((key, meter.state) for key, meter in self._tripped.items())

    def limit(self, key: Key, now: float) -> int | None:
        """Return the tokens to which each output is clamped, or None."""
        meter = self._current(key, now)
        return None if meter is None else math.ceil(self._allowed(meter))

    def admit(self, key: Key, exchange: str, now: float, *, strict: bool = False) -> Held | None:
        """Return why a call may not pass, or None.

        A probe that passes holds its place until `done`.
        """
        meter = self._current(key, now)
        if meter is None or meter.state is State.CLAMPED or strict:
            return None
        if meter.state is State.HALF_OPEN and meter.probes < self.rules.probes:
            meter.probes += 1
            self._probes[exchange] = meter
            return None
        return Held(self._allowed(meter), math.exp(meter.recent))

    def done(self, exchange: str) -> None:
        """Give back a probe's place; harmless where the exchange holds none."""
        meter = self._probes.pop(exchange, None)
        if meter is not None:
            meter.probes -= 1

    def ended(self, key: Key, tokens: int, *, admitted_at: float, now: float) -> None:
        """Learn from a completed output of this many tokens (of one choice)."""
        meter = self._current(key, now) or self._known(key)
        length = log_length(tokens)
        meter.recent += RECENT * (length - meter.recent) if meter.recent else length
        if meter.state is State.CLOSED:
            self._watch(key, meter, length, now)
        elif meter.state is not State.OPEN and admitted_at >= meter.since:
            self._test(key, meter, length, now)

    def _watch(self, key: Key, meter: Meter, length: float, now: float) -> None:
        """Look for a rise, and learn what is usual: Page's test."""
        alarm = math.log(self.rules.alarm)
        if meter.baseline.learned:
            before = meter.evidence
            told = meter.baseline.evidence(length, self.rules.rise, alarm / LEAST_CALLS)
            meter.evidence = min(alarm, max(0.0, before + told))
            if before == 0.0:
                meter.risen_at = now
        certain, lasting = meter.evidence >= alarm, now - meter.risen_at >= self.rules.sustain
        if not certain or lasting:  # else a busy tenant's rise would be usual before it has lasted
            meter.baseline.add(length)
        if certain and lasting and meter.baseline.factor(meter.recent) >= self.rules.rise:
            self._move(key, meter, Signal.RISEN, now)

    def _test(self, key: Key, meter: Meter, length: float, now: float) -> None:
        """Decide whether lengths are normal again or still risen: Wald's test."""
        meter.heard_at = now
        told = meter.baseline.evidence(length, self.rules.rise, SURE / LEAST_PROBES)
        meter.evidence = min(SURE, meter.evidence + told)
        if meter.evidence <= -SURE:
            self._move(key, meter, Signal.NORMAL, now)
        elif meter.evidence >= SURE and (
            meter.state is State.HALF_OPEN or now - meter.since >= self.rules.clamp_for
        ):
            self._move(key, meter, Signal.RISEN, now)

    def _current(self, key: Key, now: float) -> Meter | None:
        """Return the meter of what is held back, after all that time alone does; None if nothing is."""
        while (meter := self._tripped.get(key)) is not None:
            signal = self._due(meter, now)
            if signal is None:
                return meter
            self._move(key, meter, signal, now)
        return None

    def _due(self, meter: Meter, now: float) -> Signal | None:
        if now - meter.tripped_at >= self.rules.relearn:
            return Signal.RELEARNED
        if meter.state is State.OPEN:
            doubled = self.rules.open_for * 2.0 ** min(meter.trips - 1, 30)
            over = now - meter.since >= min(self.rules.longest, doubled)
            return Signal.ELAPSED if over else None
        return Signal.SILENT if now - max(meter.since, meter.heard_at) >= SILENCE else None

    def _move(self, key: Key, meter: Meter, signal: Signal, now: float) -> None:
        before, after = meter.state, TRANSITIONS[meter.state, signal]
        meter.state, meter.since, meter.evidence = after, now, 0.0
        self.entered[after] += 1
        if after is State.OPEN:
            meter.trips += 1
        if before is State.CLOSED:
            meter.tripped_at = now
            del self._closed[key]
            self._keep(self._tripped, key, meter)
        elif after is State.CLOSED:
            meter.trips = 0
            if signal is Signal.RELEARNED:
                meter.baseline = Baseline()
            del self._tripped[key]
            self._keep(self._closed, key, meter)

    def _known(self, key: Key) -> Meter:
        meter = self._closed.get(key)
        if meter is None:
            meter = Meter()
            self._keep(self._closed, key, meter)
        else:
            self._closed.move_to_end(key)
        return meter

    def _keep(self, meters: OrderedDict[Key, Meter], key: Key, meter: Meter) -> None:
        meters[key] = meter
        if len(meters) > self._capacity:
            meters.popitem(last=False)

    def _allowed(self, meter: Meter) -> float:
        return self.rules.rise * meter.baseline.average


class BreakerGate:
    """Sheds calls whose outputs stay too long even when clamped; an `extproc.core.controller.Gate`."""

    def __init__(self, breaker: Breaker) -> None:
        self._breaker = breaker

    def __call__(self, call: Candidate, pool: Pool, now: float) -> Refusal | None:
        """See `extproc.core.controller.Gate`."""
        if self._breaker.idle:
            return None
        who = call.classification
        key, strict = key_of(pool.name, who), who.service_class.strict
        held = self._breaker.admit(key, call.id, now, strict=strict)
        if held is None:
            return None
        return Refusal(Reason.BREAKER_OUTPUT_LENGTH, round(held.allowed), round(held.recent))


def key_of(pool: str, who: Classification) -> Key:
    """Return whose baseline a call is measured against."""
    return Key(pool, who.tenant, who.task)
