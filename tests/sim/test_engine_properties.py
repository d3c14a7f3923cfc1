"""What holds for an engine whatever happens to it, in whatever order."""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from extproc.sim.engine import Engine, Request
from extproc.sim.engine_config import EngineConfig, Policy

CONFIGS = st.builds(
    EngineConfig,
    num_gpu_blocks=st.integers(3, 16),
    block_size=st.integers(1, 4),
    max_num_seqs=st.integers(1, 5),
    max_num_batched_tokens=st.integers(1, 20),
    policy=st.sampled_from(Policy),
)


class EngineMachine(RuleBasedStateMachine):
    """Submits, steps and aborts at random, and keeps a second account of all of it."""

    def __init__(self) -> None:
        super().__init__()
        self.engine = Engine(EngineConfig())
        self.open: dict[str, tuple[Request, float]] = {}
        self.emitted: Counter[str] = Counter()
        self.steps_since_a_token = 0
        self.now = 0.0

    @initialize(config=CONFIGS)
    def start(self, config: EngineConfig) -> None:
        self.engine = Engine(config)

    @rule(
        prompt=st.integers(1, 6) | st.integers(1, 40),
        output=st.integers(1, 20),
        priority=st.integers(-1, 2),
        prefix=st.sampled_from(["x", "y", ""]),
        later=st.sampled_from([0.0, 1.0]),
    )
    def submit(self, prompt: int, output: int, priority: int, prefix: str, later: float) -> None:
        longest = self.engine.config.longest
        prompt = min(prompt, longest - 1)
        output = min(output, longest - prompt)
        full = prompt // self.engine.config.block_size
        names = tuple(f"{prefix}{i}" for i in range(full)) if prefix else ()
        self.now += later
        request = Request(f"r{len(self.emitted)}", prompt, output, priority, names)
        self.engine.submit(request, self.now)
        self.open[request.id] = (request, self.now)
        self.emitted[request.id] = 0

    @rule()
    def step(self) -> None:
        running = {name for name, _, _ in self.engine.held()}
        queue = self.engine.queue()
        result = self.engine.step()
        assert result.duration > 0 or not result.emitted
        assert len(set(result.emitted)) == len(result.emitted)
        assert set(result.finished) <= set(result.emitted)
        assert not set(result.preempted) & set(result.emitted)
        assert set(result.preempted) <= running
        admitted = [name for name in queue if name not in self.engine.queue()]
        assert admitted == queue[: len(admitted)]  # the order of the queue is respected
        assert not (admitted and result.preempted)
        self.emitted.update(result.emitted)
        for name in result.finished:
            request, _ = self.open.pop(name)
            assert self.emitted[name] == request.output_tokens

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.open)))
        assert self.engine.abort(name)
        del self.open[name]
        assert not self.engine.abort(name)

    @rule()
    def abort_everything(self) -> None:
        for name in self.open:
            assert self.engine.abort(name)
        self.open.clear()
        self.all_is_free()

    @rule()
    def run_to_the_end(self) -> None:
        bound = 50 + 10 * sum(
            request.prompt_tokens + request.output_tokens for request, _ in self.open.values()
        )
        for _ in range(bound):
            if self.engine.idle:
                break
            self.step()
        assert not self.open  # whoever was preempted has finished too
        self.all_is_free()

    def all_is_free(self) -> None:
        assert self.engine.idle
        assert (self.engine.running, self.engine.waiting, self.engine.kv_usage) == (0, 0, 0.0)
        assert self.engine.free_blocks == self.engine.config.num_gpu_blocks - 1

    @invariant()
    def blocks_are_conserved(self) -> None:
        engine = self.engine
        total = engine.config.num_gpu_blocks - 1
        assert 0.0 <= engine.kv_usage <= 1.0
        used = round(engine.kv_usage * total)
        assert used + engine.free_blocks == total
        assert used <= sum(blocks for _, _, blocks in engine.held())

    @invariant()
    def sequences_hold_the_blocks_that_their_tokens_need(self) -> None:
        for name, computed, blocks in self.engine.held():
            request, _ = self.open[name]
            assert blocks == -(-computed // self.engine.config.block_size)
            assert computed < request.prompt_tokens + request.output_tokens

    @invariant()
    def nothing_is_lost_and_limits_hold(self) -> None:
        running = [name for name, _, _ in self.engine.held()]
        assert sorted(running + self.engine.queue()) == sorted(self.open)
        assert len(running) == self.engine.running <= self.engine.config.max_num_seqs
        assert self.engine.generation_tokens_total == self.emitted.total()

    @invariant()
    def queue_is_in_order(self) -> None:
        def rank(name: str) -> tuple[int, float, int]:
            request, arrival = self.open[name]
            order = int(name[1:])
            if self.engine.config.policy is Policy.FCFS:
                return (0, 0.0, order)
            return (request.priority, arrival, order)

        queue = self.engine.queue()
        assert queue == sorted(queue, key=rank)


EngineMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=40)
TestEngine = EngineMachine.TestCase
