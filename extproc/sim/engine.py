"""A model of one vLLM v1 engine: what is scheduled, what the KV cache holds, how long steps take.

Rules this module keeps:

* Pure: no I/O, no asyncio, no clock. The caller says when a request arrives and adds up the
  durations that ``step`` returns; the emulator sleeps for them, a simulation just counts.
* Deterministic: equal calls give equal results.
* The scheduler is vLLM's: running sequences first, in the order of their admission; then the waiting
  queue while the token budget, the sequence limit and the blocks last. A sequence is admitted only
  if all its tokens so far fit (``scheduler_reserve_full_isl``), and none in a step that preempted.
* Preemption is by recomputation: the victim loses its blocks, keeps its tokens, and waits again in
  its old place. It is the worst (priority, arrival) under the priority policy, the last admitted
  under first come, first served. A waiting sequence never preempts a running one.
* Every token computed has its place in a block; the token that ends a sequence is never computed.

The effects of a step (tokens, blocks released by what it finished) are visible as soon as ``step``
returns, although they belong to its end; no other step can run in between.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from extproc.sim.blocks import BlockPool
from extproc.sim.engine_config import EngineConfig, Policy


@dataclass(frozen=True, slots=True)
class Request:
    """One sequence to generate.

    Attributes:
        id: unique among the unfinished requests of the engine.
        prompt_tokens: length of the prompt, at least 1.
        output_tokens: tokens after which the sequence ends, at least 1.
        priority: lower is served first; of no effect under first come, first served.
        prefix: content names of the prompt's leading full blocks, each standing for all that
            precedes it too; equal names share blocks.
    """

    id: str
    prompt_tokens: int
    output_tokens: int
    priority: int = 0
    prefix: tuple[Hashable, ...] = ()


class EngineBusyError(Exception):
    """The engine has as many unfinished requests as it may have: try again later or elsewhere."""


class StepResult(NamedTuple):
    """What one step did.

    Attributes:
        duration: seconds that it takes; 0.0 where nothing was computed.
        emitted: ids of the requests that got one more token.
        finished: those of them that got their last.
        preempted: ids of the requests that lost their blocks and wait again.
    """

    duration: float
    emitted: list[str]
    finished: list[str]
    preempted: list[str]


@dataclass(eq=False, slots=True)
class _Sequence:
    """One request in the engine.

    Attributes:
        rank: order in the waiting queue, highest first; unique.
        tokens: prompt and generated tokens.
        target: tokens at which it ends.
        computed: tokens in the cache.
        scheduled: tokens of the latest step; -1 after a preemption.
        room: tokens that the blocks held can take.
        private: blocks held alone.
        shared: names of the blocks held that others may hold too.
        named: blocks of the prefix that were offered for sharing.
    """

    request: Request
    rank: tuple[int, float, int]
    id: str
    tokens: int
    target: int
    first_token_due: bool = True
    computed: int = 0
    scheduled: int = 0
    room: int = 0
    private: int = 0
    shared: list[Hashable] = field(default_factory=list)
    named: int = 0


class Engine:
    """One engine: submit, step, abort, and the gauges of its metrics page."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.preemptions_total = 0
        self.prompt_tokens_total = 0
        self.generation_tokens_total = 0
        self.computed_tokens_total = 0  # all that went through the model, recomputed ones again
        self.prefix_queries_total = 0  # tokens looked up in the prefix cache
        self.prefix_hits_total = 0  # tokens found there
        self._pool = BlockPool(config.num_gpu_blocks - 1)
        self._sequences: dict[str, _Sequence] = {}
        self._running: list[_Sequence] = []
        # Ascending by rank, so the next to admit is the last: the cheap end of a list.
        self._waiting: list[tuple[tuple[int, float, int], _Sequence]] = []
        self._submitted = 0

    @property
    def kv_usage(self) -> float:
        """Used share of the KV cache, 0..1."""
        return self._pool.used / self._pool.total

    @property
    def free_blocks(self) -> int:
        """Blocks that can be taken, cached but unreferenced ones included."""
        return self._pool.free

    @property
    def running(self) -> int:
        """Sequences that hold blocks and are being computed."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Sequences in the engine's queue, preempted ones included."""
        return len(self._waiting)

    @property
    def idle(self) -> bool:
        """Whether a step would do nothing."""
        return not self._sequences

    def held(self) -> Iterator[tuple[str, int, int]]:
        """For each running sequence its id, the tokens in the cache and the blocks held."""
        for sequence in self._running:
            yield sequence.id, sequence.computed, sequence.private + len(sequence.shared)

    def queue(self) -> list[str]:
        """Return the ids of the waiting sequences, the next one first."""
        return [sequence.id for _, sequence in reversed(self._waiting)]

    def submit(self, request: Request, now: float) -> None:
        """Put a request into the waiting queue.

        Args:
            request: what to generate.
            now: arrival in seconds; decides among equal priorities.

        Raises:
            EngineBusyError: ``max_num_queued_reqs`` is reached.
            ValueError: the id is in use, a length is under 1, or prompt and output together are
                longer than the engine takes.
        """
        bound = self.config.max_num_queued_reqs
        if bound is not None and len(self._sequences) >= bound:
            raise EngineBusyError(f"{len(self._sequences)} requests of {bound} are unfinished")
        if request.id in self._sequences:
            raise ValueError(f"request id {request.id!r} is in use")
        if request.prompt_tokens < 1 or request.output_tokens < 1:
            raise ValueError("prompt_tokens and output_tokens must be at least 1")
        if request.prompt_tokens + request.output_tokens > self.config.longest:
            raise ValueError(f"prompt and output are longer than {self.config.longest} tokens")
        self._submitted += 1
        if self.config.policy is Policy.PRIORITY:
            rank = (-request.priority, -now, -self._submitted)
        else:
            rank = (0, 0.0, -self._submitted)
        tokens = request.prompt_tokens
        sequence = _Sequence(request, rank, request.id, tokens, tokens + request.output_tokens)
        self._sequences[request.id] = sequence
        insort(self._waiting, (rank, sequence))

    def abort(self, request_id: str) -> bool:
        """Forget a request and free its blocks.

        Returns:
            False where it is unknown or has finished.
        """
        sequence = self._sequences.pop(request_id, None)
        if sequence is None:
            return False
        # Ranks are unique, so the search never compares sequences.
        place = bisect_left(self._waiting, (sequence.rank,))
        if place < len(self._waiting) and self._waiting[place][1] is sequence:
            del self._waiting[place]
        else:
            self._running.remove(sequence)
            self._release(sequence)
        return True

    def step(self) -> StepResult:
        """Schedule and compute one step."""
        batch, preempted, budget = self._schedule_running()
        if self._waiting and not preempted:
            self._admit(batch, budget)
        if not batch:
            return StepResult(0.0, [], [], preempted)
        return self._compute(batch, preempted)

    def _compute(self, batch: list[_Sequence], preempted: list[str]) -> StepResult:
        """Compute what is scheduled: tokens, ends, and how long it takes."""
        prefill_tokens = decoding = 0
        emitted: list[str] = []
        finished: list[str] = []
        for sequence in batch:
            scheduled = sequence.scheduled
            if scheduled == 1:
                decoding += 1
            else:
                prefill_tokens += scheduled
            sequence.computed += scheduled
            if sequence.named < len(sequence.request.prefix):
                self._name_blocks(sequence)
            if sequence.computed == sequence.tokens:
                sequence.tokens += 1
                emitted.append(sequence.id)
                if sequence.first_token_due:
                    sequence.first_token_due = False
                    self.prompt_tokens_total += sequence.request.prompt_tokens
                if sequence.tokens == sequence.target:
                    finished.append(sequence.id)
        self.generation_tokens_total += len(emitted)
        self.computed_tokens_total += prefill_tokens + decoding
        if finished:
            for request_id in finished:
                self._release(self._sequences.pop(request_id))
            self._running = [s for s in self._running if s.tokens < s.target]
        cost = self.config.cost
        duration = cost.base + cost.prefill * prefill_tokens + cost.decode * decoding
        return StepResult(duration, emitted, finished, preempted)

    def _schedule_running(self) -> tuple[list[_Sequence], list[str], int]:
        """Give each running sequence its tokens, preempting where the blocks run out.

        Returns:
            The sequences to compute, the preempted ids, and what is left of the token budget.
        """
        budget = self.config.max_num_batched_tokens
        running = self._running
        batch: list[_Sequence] = []
        preempted: list[str] = []
        for sequence in running.copy():
            if budget == 0:
                break
            if sequence.scheduled < 0:  # preempted for one before it
                continue
            scheduled = sequence.tokens - sequence.computed
            if scheduled > budget:
                scheduled = budget
            if sequence.computed + scheduled > sequence.room:
                while not self._grow(sequence, scheduled):
                    victim = self._victim()
                    running.remove(victim)
                    preempted.append(victim.id)
                    if victim in batch:
                        batch.remove(victim)
                        budget += victim.scheduled
                    self._preempt(victim)
                    if victim is sequence:
                        return batch, preempted, budget
            sequence.scheduled = scheduled
            budget -= scheduled
            batch.append(sequence)
        return batch, preempted, budget

    def _admit(self, batch: list[_Sequence], budget: int) -> None:
        """Move waiting sequences into ``batch`` while budget, places and blocks last."""
        block_size = self.config.block_size
        while self._waiting and budget > 0 and len(self._running) < self.config.max_num_seqs:
            sequence = self._waiting[-1][1]
            # The last token is always computed, for its logits.
            limit = (sequence.tokens - 1) // block_size
            hits, idle_hits = self._pool.cached(sequence.request.prefix, limit)
            if -(-sequence.tokens // block_size) - hits > self._pool.free - idle_hits:
                return
            self._waiting.pop()
            self._running.append(sequence)
            sequence.shared = list(sequence.request.prefix[:hits])
            self._pool.share(sequence.shared)
            sequence.named = hits
            sequence.computed = sequence.room = hits * block_size
            if sequence.request.prefix:
                self.prefix_queries_total += sequence.tokens
                self.prefix_hits_total += sequence.computed
            sequence.scheduled = min(sequence.tokens - sequence.computed, budget)
            self._grow(sequence, sequence.scheduled)
            budget -= sequence.scheduled
            batch.append(sequence)

    def _grow(self, sequence: _Sequence, scheduled: int) -> bool:
        """Take the blocks for ``scheduled`` more tokens, all or none."""
        block_size = self.config.block_size
        missing = -(-(sequence.computed + scheduled - sequence.room) // block_size)
        if missing > self._pool.free:
            return False
        self._pool.take(missing)
        sequence.private += missing
        sequence.room += missing * block_size
        return True

    def _name_blocks(self, sequence: _Sequence) -> None:
        """Let others share the blocks of the prefix that are full now."""
        full = min(sequence.computed // self.config.block_size, len(sequence.request.prefix))
        for name in sequence.request.prefix[sequence.named : full]:
            if self._pool.name(name):
                sequence.private -= 1
                sequence.shared.append(name)
        sequence.named = max(sequence.named, full)

    def _victim(self) -> _Sequence:
        if self.config.policy is Policy.PRIORITY:
            return min(self._running, key=lambda sequence: sequence.rank)
        return self._running[-1]

    def _preempt(self, victim: _Sequence) -> None:
        self._release(victim)
        victim.computed = victim.room = victim.named = 0
        victim.scheduled = -1
        insort(self._waiting, (victim.rank, victim))
        self.preemptions_total += 1

    def _release(self, sequence: _Sequence) -> None:
        self._pool.release(sequence.private, reversed(sequence.shared))
        sequence.private = 0
        sequence.shared = []
