"""What is known of the engines' KV cache."""

from __future__ import annotations

from dataclasses import dataclass


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
    """

    kv_usage: float
    blocks: int | None
    block_size: int | None
    running: int
    waiting: int
    preemptions: int
