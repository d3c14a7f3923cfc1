"""What a drill leaves behind: what became of every call, and how full the engines were."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from extproc.sim.drill.policy import Offer
from extproc.sim.drill.workload import Call


class End(StrEnum):
    """How a call ended."""

    COMPLETED = "completed"
    SHED = "shed"
    REJECTED = "rejected"
    EVICTED = "evicted"
    ENGINE_ERROR = "engine_error"
    UNFINISHED = "unfinished"


@dataclass(eq=False, slots=True)
class Record:
    """What became of a call.

    Attributes:
        call: the call.
        offer: what the gateway knew of it.
        gateway: which one decided.
        counts: it was offered in the measured time.
        seen: when it was offered, in the order of decisions.
        decided: when it was sent or refused, in that order; -1 before.
        epoch: how much news the gateway had had when it decided.
        end: how it ended; None while it is under way.
        reason: why it was refused.
        node: the endpoint that had it last.
        first_at, ended_at: times.
    """

    call: Call
    offer: Offer
    gateway: int
    counts: bool
    seen: int
    decided: int = -1
    epoch: int = -1
    end: End | None = None
    reason: str = ""
    node: int = -1
    sent_at: float = math.inf
    first_at: float = math.inf
    ended_at: float = math.inf


@dataclass(frozen=True, slots=True)
class Sample:
    """The state at a moment: KV usage of the living endpoints, and which classes are closed."""

    at: float
    kv_usage: float
    closed: tuple[bool, ...] | None


@dataclass(frozen=True, slots=True)
class History:
    """All that a drill left behind.

    Attributes:
        records: every call, in the order of arrival.
        samples: of the measured time.
        computed: tokens that went through the models.
        running: of calls that were unfinished at the end, the tokens in the cache by id.
        preemptions: by the engines.
    """

    records: Sequence[Record]
    samples: Sequence[Sample]
    computed: int
    running: Mapping[str, int]
    preemptions: int
