"""The reference: what a controller could do that knew every output's length and saw without delay.

It is fair and strong in this sense:

- It keeps the order that every controller here must keep: the higher class first, within a class
  by arrival. It does not pick short calls over long ones, which would win calls per second by
  starving long ones. It does not know who will call.
- A call is sent as soon as the *exact* future peak of an endpoint's cache, with that call, fits. So
  the cache is as full as it can be without a preemption.
- It may keep a headroom for the highest class, or none, whichever turns out better: every drill is
  played with each of `HEADROOMS`, and the best goodput counts.
- It sends no faster than engines prefill without slowing the running calls beyond their promise.
- A call waits as long as its first token can still be in time, and is refused when it cannot.
- Who does not fit claims the endpoint that is nearest to taking it; those behind may use the other
  endpoints only. (Otherwise a long call would wait for ever, or a hole would be left for it on all.)
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from operator import itemgetter

from extproc.sim.drill.policy import NOTHING, Action, Offer, Policy, Refuse, Send
from extproc.sim.drill.workload import Call
from extproc.sim.drill.world import Node, World

HEADROOMS = (0.0, 0.05)
"""Shares of the cache that only the highest class may use."""
LOOK_AGAIN = 0.02
"""Seconds after which a waiting call is looked at again: about an engine's step."""


class Clairvoyant(Policy):
    """Sees the world itself; `enter` it before it runs."""

    def __init__(self, headroom: float) -> None:
        self._headroom = headroom
        self._queues: list[deque[Call]] = []

    def enter(self, world: World) -> None:
        """Take the world in which calls and engines are to be seen."""
        self._world = world
        setting = world.setting
        self._queues = [deque() for _ in setting.terms]
        self._patience = [terms.first_token for terms in setting.terms]
        engine = setting.engine
        self._room = [
            engine.capacity * (1.0 - (self._headroom if rank else 0.0))
            for rank in range(len(setting.terms))
        ]
        self._max_num_seqs = engine.max_num_seqs
        # A block's second half is empty on average, for each sequence.
        self._slack = engine.block_size / 2
        cost = engine.cost
        spare = setting.per_token - cost.base - cost.decode * engine.max_num_seqs
        self._prefill_seconds = cost.prefill
        self._backlog = max(0.0, spare) / cost.prefill if cost.prefill else math.inf
        # What is sent waits for the step under way, then for its own and the backlog's prefill.
        self._lead = 2.0 * setting.per_token + max(0.0, spare)

    def offer(self, offer: Offer, now: float) -> Iterable[Action]:
        """See `Policy`."""
        queue = self._queues[offer.rank]
        queue.append(self._world.records[offer.id].call)
        # Behind one that waits, nothing has changed for the new one.
        return self._pump(now) if len(queue) == 1 else NOTHING

    def ended(self, call: str, usage: tuple[int, int] | None, now: float) -> Iterable[Action]:
        """See `Policy`."""
        return self._pump(now)

    def wake(self, now: float) -> Iterable[Action]:
        """See `Policy`."""
        return self._pump(now)

    def _pump(self, now: float) -> list[Action]:
        actions: list[Action] = []
        endpoints = [_Endpoint(node, self._slack) for node in self._world.nodes if node.alive]
        for queue, patience, room in zip(self._queues, self._patience, self._room, strict=True):
            kept: deque[Call] = deque()
            while queue and endpoints:
                call = queue.popleft()
                if now + self._lead + call.prompt * self._prefill_seconds > call.at + patience:
                    actions.append(Refuse(call.id, "queue_deadline"))
                    continue
                peak, best = min(
                    ((endpoint.peak_with(call), endpoint) for endpoint in endpoints),
                    key=itemgetter(0),
                )
                if peak <= room and self._takes(best, call):
                    best.add(call)
                    actions.append(Send(call.id, best.node.name))
                else:
                    kept.append(call)
                    endpoints.remove(best)
            kept.extend(queue)
            queue.clear()
            queue.extend(kept)
        self.wake_at = now + LOOK_AGAIN if any(self._queues) else math.inf
        return actions

    def _takes(self, endpoint: _Endpoint, call: Call) -> bool:
        return len(endpoint.sequences) < self._max_num_seqs and (
            not endpoint.unprefilled or endpoint.unprefilled + call.prompt <= self._backlog
        )


class _Endpoint:
    """What is in an endpoint at this moment, as (tokens left to generate, tokens held)."""

    def __init__(self, node: Node, slack: float) -> None:
        self.node = node
        self._slack = slack
        self.sequences: list[tuple[int, int]] = []
        self.unprefilled = 0
        computed = {call: tokens for call, tokens, _ in node.engine.held()}
        for record in node.calls.values():
            call = record.call
            tokens = computed.get(call.id, 0)
            held = max(tokens, call.prompt)
            self.unprefilled += held - tokens
            self.sequences.append((call.prompt + call.output - held, held))
        self.sequences.sort(reverse=True)

    def peak_with(self, call: Call) -> float:
        """Return the most tokens that will be held if the call comes too."""
        own = (call.output, call.prompt)
        peak = held = 0.0
        count = 0
        pending = True
        for sequence in self.sequences:
            if pending and own > sequence:
                pending = False
                count, held = count + 1, held + own[1] + self._slack
                peak = max(peak, held + count * own[0])
            count, held = count + 1, held + sequence[1] + self._slack
            total = held + count * sequence[0]
            if total > peak:
                peak = total
        if pending:
            peak = max(peak, held + own[1] + self._slack + (count + 1) * own[0])
        return peak

    def add(self, call: Call) -> None:
        """Count a call in."""
        self.sequences.append((call.output, call.prompt))
        self.sequences.sort(reverse=True)
        self.unprefilled += call.prompt
