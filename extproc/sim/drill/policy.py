"""What a controller under test is asked, and what it may answer.

Rules kept here:

- A policy sees what a gateway sees: an estimate of the prompt, never the output; scrapes with their
  delay; ends as they are reported. Only the clairvoyant is handed more.
- It acts by what it returns. The world carries that out, and judges nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from extproc.core.readings import Reading
from extproc.sim.engine_config import Policy as Scheduling


@dataclass(frozen=True, slots=True)
class Offer:
    """A call as the gateway reads it.

    Attributes:
        id: unique.
        rank: the class.
        tenant, task: who and what for.
        prompt: estimated tokens.
        max_tokens: that the engine may generate.
        ticket: that its client was given when it was shed before, or "".
    """

    id: str
    rank: int
    tenant: str
    task: str
    prompt: int
    max_tokens: int
    ticket: str = ""


@dataclass(frozen=True, slots=True)
class Send:
    """Let a call go to an endpoint; None: wherever Envoy sends it (least requests)."""

    id: str
    endpoint: str | None = None


@dataclass(frozen=True, slots=True)
class Refuse:
    """Answer a call with a fallback (``shed``), or an error that more capacity would not cure."""

    id: str
    reason: str
    shed: bool = True
    ticket: str = ""


@dataclass(frozen=True, slots=True)
class Evict:
    """Cut a running call."""

    id: str


Action = Send | Refuse | Evict
NOTHING: tuple[Action, ...] = ()


class Policy:
    """A controller under test. What is not answered with an action waits.

    Attributes:
        scheduling: how the engines are set up for it.
        wake_at: when `wake` is due.
    """

    scheduling = Scheduling.PRIORITY
    wake_at = math.inf

    def joined(self, endpoint: str) -> None:
        """An endpoint exists."""

    def offer(self, offer: Offer, now: float) -> Iterable[Action]:
        """A call came."""
        raise NotImplementedError

    def sending(self, endpoint: str, now: float) -> None:
        """A scrape is being sent."""

    def observed(
        self, endpoint: str, reading: Reading, sent_at: float, now: float
    ) -> Iterable[Action]:
        """A scrape was answered."""
        return NOTHING

    def failed(self, endpoint: str, now: float) -> Iterable[Action]:
        """A scrape was not answered."""
        return NOTHING

    def served(self, call: str, endpoint: str, now: float) -> None:
        """A call went to another endpoint than it was sent to, or to one of Envoy's choice."""

    def ended(self, call: str, usage: tuple[int, int] | None, now: float) -> Iterable[Action]:
        """A call's stream ended; ``usage``: prompt and output tokens where it was completed."""
        return NOTHING

    def wake(self, now: float) -> Iterable[Action]:
        """``wake_at`` has come."""
        return NOTHING

    def closed(self, now: float) -> tuple[bool, ...] | None:
        """By rank, which classes are closed; None: there is no such state."""
        return None
