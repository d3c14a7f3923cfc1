"""What a scrape of an engine says, and how far it can be trusted."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Reading:
    """What one scrape of one endpoint said about one model.

    Attributes:
        kv_usage: used share of the KV cache, 0..1; of several engines behind one endpoint the worst.
        blocks: KV blocks in all (sum over engines), or None where the page does not say.
        block_size: tokens per block, or None where the page does not say.
        running: sequences being computed (sum over engines).
        waiting: sequences in the engines' own queues (sum over engines).
        preemptions: preemptions since the engine started (sum over engines; a counter).
        generated: tokens generated since the engine started (a counter), or None where unknown.
        prompted: prompt tokens read since the engine started (a counter), or None where unknown.
    """

    kv_usage: float
    blocks: int | None
    block_size: int | None
    running: int
    waiting: int
    preemptions: int
    generated: int | None = None
    prompted: int | None = None

    @property
    def sequences(self) -> int:
        """Sequences that the engine has, computed or waiting."""
        return self.running + self.waiting

    def restarted_since(self, before: Reading) -> bool:
        """Say whether a counter fell: the engine is not the one that was read before."""
        return (
            self.preemptions < before.preemptions
            or _fell(before.generated, self.generated)
            or _fell(before.prompted, self.prompted)
        )


def _fell(before: int | None, now: int | None) -> bool:
    return before is not None and now is not None and now < before


class Freshness(StrEnum):
    """How far the reading of an endpoint can be trusted."""

    FRESH = "fresh"
    STALE = "stale"
    UNKNOWN = "unknown"
