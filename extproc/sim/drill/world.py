"""The world of a drill: engines, calls and scrapes in virtual time, around a policy under test.

Rules kept here:

- Deterministic: events are ordered by time, then by when they were planned.
- Every call offered ends exactly once. What still runs when nothing that counts can change any more
  is ended as ``unfinished``.
- The network costs nothing but what is named: the delays of scrapes and of cutting a call.
- A call sent to a dead endpoint goes to another one, as Envoy retries a refused connection.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Any

from extproc.core.readings import Reading
from extproc.sim.drill.faults import Faults
from extproc.sim.drill.history import End, History, Record, Sample
from extproc.sim.drill.policy import Action, Evict, Offer, Policy, Send
from extproc.sim.drill.setting import Setting
from extproc.sim.drill.workload import AGAIN, Call
from extproc.sim.engine import Engine, Request, StepResult

SAMPLE_INTERVAL = 0.1
"""Seconds between two looks at the KV usage and at what is closed."""
PATIENCE = 300.0
"""Seconds after the last arrival at which a drill ends in any case."""


class Node:
    """An endpoint: an engine, and what the world knows of the calls in it."""

    def __init__(self, name: str, engine: Engine) -> None:
        self.name = name
        self.engine = engine
        self.calls: dict[str, Record] = {}
        self.awaiting: set[str] = set()  # calls without a first token
        self.stepping = False
        self.alive = True
        self.life = 0
        self.buried_tokens = 0
        self.offsets = (0, 0, 0)  # of its counters: preemptions, generated, prompted

    @property
    def computed_tokens(self) -> int:
        """All tokens that went through the model, in all its lives."""
        return self.buried_tokens + self.engine.computed_tokens_total


class World:
    """One run. Build it, hand `nodes` to a policy that may see them, then `run`."""

    def __init__(
        self,
        setting: Setting,
        faults: Faults,
        policies: Sequence[Policy],
        calls: Iterable[Call],
        seed: int,
    ) -> None:
        self.now = 0.0
        self.setting = setting
        self.faults = faults
        self.records: dict[str, Record] = {}
        self._engine = replace(setting.engine, policy=policies[0].scheduling)
        self.nodes = [Node(f"engine-{n}", Engine(self._engine)) for n in range(setting.endpoints)]
        self._by_name = {node.name: index for index, node in enumerate(self.nodes)}
        self._policies = policies
        self._calls: Iterator[Call] = iter(calls)
        self._classes = setting.classes()
        self._rng = Random(f"{seed}/world")  # noqa: S311 (no secrets)
        self._guess = Random(f"{seed}/guess")  # noqa: S311
        self._client = Random(f"{seed}/client")  # noqa: S311
        self._heap: list[tuple[float, int, Any, Any]] = []
        self._planned = count()
        self._order = count()
        self._epochs = [0] * len(policies)
        self._waking = [math.inf] * len(policies)
        self._samples: list[Sample] = []
        self._under_way: dict[str, Record] = {}  # that count
        self._preemptions = 0
        self._last_arrival = math.inf
        self._over = False

    def run(self) -> History:
        """Play it through."""
        self._start()
        heap = self._heap
        while heap and not self._over:
            self.now, _, act, argument = heappop(heap)
            act(argument)
        return self._history()

    # Planning.

    def _plan(self, at: float, act: Any, argument: Any = None) -> None:
        heappush(self._heap, (at, next(self._planned), act, argument))

    def _start(self) -> None:
        interval = self.faults.scrape_interval or self.setting.scrape_interval
        for gateway, policy in enumerate(self._policies):
            for node in self.nodes:
                policy.joined(node.name)
            for index in range(len(self.nodes)):
                self._plan(self._rng.random() * interval, self._scrape, (gateway, index, interval))
        if self.faults.death is not None:
            self._plan(self.faults.death[0], self._die, 0)
            self._plan(self.faults.death[1], self._return, 0)
        if self.faults.counter_reset is not None:
            self._plan(self.faults.counter_reset, self._reset_counters)
        self._plan(0.0, self._sample)
        self._next_call()

    def _next_call(self) -> None:
        call = next(self._calls, None)
        if call is None:
            self._last_arrival = self.now
        else:
            self._plan(call.at, self._arrive, call)

    # Calls.

    def _arrive(self, call: Call) -> None:
        self._next_call()
        self._offer((call, ""))

    def _offer(self, argument: tuple[Call, str]) -> None:
        call, ticket = argument
        error = 1.0 + self._guess.uniform(-1.0, 1.0) * self.setting.estimate_error
        prompt = max(1, round(call.prompt * error * self.faults.token_error))
        offer = Offer(call.id, call.rank, call.tenant, call.task, prompt, call.max_tokens, ticket)
        gateway = self._guess.randrange(len(self._policies)) if len(self._policies) > 1 else 0
        start = self.setting.warm_up
        counts = start <= call.at < start + self.setting.measured
        record = Record(call, offer, gateway, counts, next(self._order))
        self.records[call.id] = record
        if counts:
            self._under_way[call.id] = record
        self._carry_out(gateway, self._policies[gateway].offer(offer, self.now))

    def _carry_out(self, gateway: int, actions: Iterable[Action]) -> None:
        for action in actions:
            record = self.records[action.id]
            if isinstance(action, Evict):
                self._evict(record)
                continue
            record.decided = next(self._order)
            record.epoch = self._epochs[gateway]
            if isinstance(action, Send):
                self._send(record, action.endpoint)
            else:
                record.reason = action.reason
                self._close(record, End.SHED if action.shed else End.REJECTED)
                if action.shed:
                    self._maybe_resubmit(record.call, action.ticket)
        policy = self._policies[gateway]
        if policy.wake_at < self._waking[gateway]:
            self._waking[gateway] = policy.wake_at
            self._plan(max(self.now, policy.wake_at), self._wake, gateway)

    def _maybe_resubmit(self, call: Call, ticket: str) -> None:
        """Let the client come back once, when the fallback told it to: that is another call."""
        share = self.faults.resubmit or self.setting.resubmit
        if share and not call.again and self._client.random() < share:
            at = self.now + self.setting.config.fallback.retry_after
            again = replace(call, id=f"{call.id}{AGAIN}", at=at, again=True)
            self._plan(at, self._offer, (again, ticket))

    def _wake(self, gateway: int) -> None:
        self._waking[gateway] = math.inf
        self._epochs[gateway] += 1
        self._carry_out(gateway, self._policies[gateway].wake(self.now))

    def _send(self, record: Record, endpoint: str | None) -> None:
        index = -1 if endpoint is None else self._by_name[endpoint]
        if index < 0 or not self.nodes[index].alive:
            alive = [n for n, node in enumerate(self.nodes) if node.alive]
            if not alive:
                self._close(record, End.ENGINE_ERROR)
                self._tell_end(record, None)
                return
            index = min(alive, key=lambda n: (len(self.nodes[n].calls), self._rng.random()))
            self._policies[record.gateway].served(record.call.id, self.nodes[index].name, self.now)
        node = self.nodes[index]
        call = record.call
        record.node, record.sent_at = index, self.now
        node.calls[call.id] = record
        node.awaiting.add(call.id)
        priority = self._classes[call.rank].engine_priority
        node.engine.submit(Request(call.id, call.prompt, call.output, priority), self.now)
        if not node.stepping:
            self._step(node)

    def _evict(self, record: Record) -> None:
        if record.end is not None:
            return
        node = self.nodes[record.node]
        del node.calls[record.call.id]
        node.awaiting.discard(record.call.id)
        self._close(record, End.EVICTED)
        self._plan(
            self.now + self.setting.abort_delay, self._abort, (node, node.life, record.call.id)
        )
        self._tell_end(record, None)

    def _abort(self, argument: tuple[Node, int, str]) -> None:
        node, life, call = argument
        if node.life == life:
            node.engine.abort(call)

    def _close(self, record: Record, end: End) -> None:
        record.end = end
        record.ended_at = self.now
        self._under_way.pop(record.call.id, None)

    def _tell_end(self, record: Record, usage: tuple[int, int] | None) -> None:
        if self.faults.lost_ends and self._guess.random() < self.faults.lost_ends:
            return
        gateway = record.gateway
        self._epochs[gateway] += 1
        self._carry_out(gateway, self._policies[gateway].ended(record.call.id, usage, self.now))

    # Engines.

    def _step(self, node: Node) -> None:
        """Start the next step; what it did is told when it is over."""
        engine = node.engine
        while not engine.idle:
            result = engine.step()
            self._preemptions += len(result.preempted)
            if result.duration > 0.0:
                node.stepping = True
                self._plan(self.now + result.duration, self._stepped, (node, node.life, result))
                return

    def _stepped(self, argument: tuple[Node, int, StepResult]) -> None:
        node, life, result = argument
        if node.life != life:
            return
        if node.awaiting:
            for call in result.emitted:
                if call in node.awaiting:
                    node.awaiting.remove(call)
                    node.calls[call].first_at = self.now
        ended = []
        for call in result.finished:
            record = node.calls.pop(call, None)
            if record is not None:  # else it was cut
                self._close(record, End.COMPLETED)
                ended.append(record)
        # The engine goes on before anybody hears of the ends, but what is sent in answer to them
        # within the same moment belongs to the same step.
        for record in ended:
            self._tell_end(record, (record.call.prompt, record.call.output))
        node.stepping = False
        self._step(node)

    def _die(self, index: int) -> None:
        node = self.nodes[index]
        node.alive = False
        lost = list(node.calls.values())
        node.buried_tokens += node.engine.computed_tokens_total
        node.engine = Engine(self._engine)
        node.calls, node.awaiting = {}, set()
        node.life += 1
        node.stepping = False
        node.offsets = (0, 0, 0)
        for record in lost:
            self._close(record, End.ENGINE_ERROR)
        for record in lost:
            self._tell_end(record, None)

    def _return(self, index: int) -> None:
        self.nodes[index].alive = True

    def _reset_counters(self, _: None) -> None:
        for node in self.nodes:
            engine = node.engine
            node.offsets = (
                engine.preemptions_total,
                engine.generation_tokens_total,
                engine.prompt_tokens_total,
            )

    # Scrapes.

    def _scrape(self, argument: tuple[int, int, float]) -> None:
        gateway, index, interval = argument
        node = self.nodes[index]
        if self.now <= self._last_arrival + PATIENCE:
            self._plan(self.now + interval, self._scrape, argument)
        self._policies[gateway].sending(node.name, self.now)
        delay = self._rng.uniform(*self.setting.scrape_delay)
        self._plan(self.now + delay / 2, self._read, (gateway, node, self.now, self.now + delay))

    def _read(self, argument: tuple[int, Node, float, float]) -> None:
        gateway, node, sent_at, due = argument
        outage = self.faults.outage
        if not node.alive or (outage is not None and outage[0] <= self.now < outage[1]):
            self._plan(due, self._fail, (gateway, node))
            return
        engine = node.engine
        reading = Reading(
            kv_usage=engine.kv_usage,
            blocks=round(engine.config.num_gpu_blocks * self.faults.block_error),
            block_size=engine.config.block_size,
            running=engine.running,
            waiting=engine.waiting,
            preemptions=engine.preemptions_total - node.offsets[0],
            generated=engine.generation_tokens_total - node.offsets[1],
            prompted=engine.prompt_tokens_total - node.offsets[2],
        )
        self._plan(due, self._observe, (gateway, node, reading, sent_at))

    def _observe(self, argument: tuple[int, Node, Reading, float]) -> None:
        gateway, node, reading, sent_at = argument
        self._epochs[gateway] += 1
        policy = self._policies[gateway]
        self._carry_out(gateway, policy.observed(node.name, reading, sent_at, self.now))

    def _fail(self, argument: tuple[int, Node]) -> None:
        gateway, node = argument
        self._epochs[gateway] += 1
        self._carry_out(gateway, self._policies[gateway].failed(node.name, self.now))

    # Looking on.

    def _sample(self, _: None) -> None:
        self._plan(self.now + SAMPLE_INTERVAL, self._sample)
        start = self.setting.warm_up
        if start <= self.now < start + self.setting.measured:
            alive = [node.engine.kv_usage for node in self.nodes if node.alive]
            usage = sum(alive) / len(alive) if alive else 0.0
            self._samples.append(Sample(self.now, usage, self._policies[0].closed(self.now)))
        elif self.now > self._last_arrival:
            late = self.now > self._last_arrival + PATIENCE
            self._over = late or not any(map(self._hopeful, self._under_way.values()))

    def _hopeful(self, record: Record) -> bool:
        limit = record.call.at + self.setting.terms[record.call.rank].first_token
        return record.first_at <= limit or (self.now < limit and math.isinf(record.first_at))

    def _history(self) -> History:
        running = {
            call: tokens
            for node in self.nodes
            for call, tokens, _ in node.engine.held()
            if self.records[call].end is None
        }
        for record in self.records.values():
            if record.end is None:
                record.end = End.UNFINISHED
        return History(
            records=list(self.records.values()),
            samples=self._samples,
            computed=sum(node.computed_tokens for node in self.nodes),
            running=running,
            preemptions=self._preemptions,
        )
