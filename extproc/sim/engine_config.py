"""The size, the policy and the speed of an engine model."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Policy(StrEnum):
    """In which order waiting requests are admitted."""

    FCFS = "fcfs"
    PRIORITY = "priority"


@dataclass(frozen=True, slots=True)
class StepCost:
    """How long one engine step takes: ``base + prefill · tokens + decode · sequences``, in seconds.

    The defaults are a roofline estimate of a 72B dense model in bfloat16 (80 layers, 8 KV heads of
    128) on four H100 (3.35 TB/s and 989 TFLOP/s each): reading 144 GB of weights at two thirds of
    the bandwidth is 16 ms; 144 GFLOP per prompt token at half of the peak is 73 µs; 1,500 tokens of
    context at 328 KB each are 52 µs of reading for each decoding sequence.

    Attributes:
        base: seconds of every step, for the weights and the launch.
        prefill: seconds per prompt token (also of recomputed ones).
        decode: seconds per decoding sequence.
    """

    base: float = 0.016
    prefill: float = 73e-6
    decode: float = 52e-6


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """The size and the policy of an engine; names are vLLM's flags.

    Attributes:
        num_gpu_blocks: KV blocks in all, at least 2. vLLM keeps one of them as its null block, so
            that usage is counted over one block less.
        block_size: tokens per block.
        max_num_seqs: sequences that run at a time.
        max_num_batched_tokens: tokens that one step computes at most.
        max_model_len: tokens of one sequence at most; None: as many as the blocks hold.
        policy: order of the waiting queue, and choice of the preemption's victim.
        max_num_queued_reqs: unfinished sequences, waiting *and* running, beyond which a new one is
            refused; None: no bound.
        cost: duration of a step.

    Raises:
        ValueError: a size is out of its range, or a longest sequence would not fit.
    """

    num_gpu_blocks: int = 2048
    block_size: int = 16
    max_num_seqs: int = 128
    max_num_batched_tokens: int = 2048
    max_model_len: int | None = None
    policy: Policy = Policy.FCFS
    max_num_queued_reqs: int | None = None
    cost: StepCost = field(default_factory=StepCost)

    def __post_init__(self) -> None:
        if self.num_gpu_blocks < 2:
            raise ValueError("num_gpu_blocks must be at least 2: one is vLLM's null block")
        for name in ("block_size", "max_num_seqs", "max_num_batched_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        if self.max_model_len is not None and not 2 <= self.max_model_len <= self.capacity:
            raise ValueError(f"max_model_len must be 2..{self.capacity}, what the blocks hold")

    @property
    def capacity(self) -> int:
        """Tokens that the usable blocks hold."""
        return (self.num_gpu_blocks - 1) * self.block_size

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence, prompt and output."""
        return self.capacity if self.max_model_len is None else self.max_model_len
