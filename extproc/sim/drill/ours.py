"""Tidegate under test: the controller, the books and the queue of `core`, fed by the world.

Rules kept here:

- Nothing is decided here. What the processor would tell `core`, and when, is told here; what `core`
  answers is passed on.
- The processor hears of an end twice: the stream's end releases, the access log settles. Here both
  come at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from extproc.core import controller
from extproc.core.capacity import Pool, PoolLimits
from extproc.core.classes import Classification, ServiceClass
from extproc.core.controller import Candidate, Controller, Line, RequestLimits, Verdict
from extproc.core.outcomes import End, Outcome
from extproc.core.queue import Queue, QueueLimits
from extproc.core.readings import Reading
from extproc.core.tickets import Subject, Tickets, fingerprint
from extproc.core.tokens import PromptParts
from extproc.sim.drill.policy import Action, Evict, Offer, Policy, Refuse, Send
from extproc.sim.drill.setting import Setting
from extproc.sim.drill.workload import AGAIN

_POOL = "pool"
_BYTES_PER_TOKEN = 4
_QUEUE = QueueLimits(max_calls=2048, max_bytes=256 << 20)


class Tidegate(Policy):
    """The controller that serves."""

    def __init__(self, setting: Setting, scrape_interval: float) -> None:
        self._classes: tuple[ServiceClass, ...] = setting.classes()
        stale_after = max(setting.stale_after, 2.0 * scrape_interval)
        self._pool = Pool(
            _POOL,
            PoolLimits(
                max_concurrency=setting.max_concurrency,
                stale_after=stale_after,
                unknown_after=max(setting.unknown_after, 2.0 * stale_after),
                pick=setting.pick,
            ),
            self._classes,
        )
        kept = setting.config.tickets
        self._tickets = Tickets(bytes(32), window=kept.window)
        line = Line(Queue(_QUEUE, self._classes), self._tickets, kept.reserve)
        self._controller = Controller(
            {_POOL: self._pool}, (RequestLimits(max_body=1 << 30),), {_POOL: line}
        )
        self._classifications: dict[tuple[int, str, str], Classification] = {}
        self._admitted_at: dict[str, float] = {}
        self._cut: set[str] = set()
        self._offers: dict[str, tuple[Offer, float]] = {}  # not decided yet, and since when

    def joined(self, endpoint: str) -> None:
        """See `Policy`."""
        self._pool.join(endpoint)

    def offer(self, offer: Offer, now: float) -> Iterable[Action]:
        """See `Policy`."""
        parts = PromptParts(latin=float(offer.prompt), wide=0.0, other=0.0)
        candidate = Candidate(
            id=offer.id,
            classification=self._classify(offer),
            prompt_tokens=self._controller.prompt_tokens(parts, _POOL),
            body_bytes=offer.prompt * _BYTES_PER_TOKEN,
            max_output=offer.max_tokens,
            parts=parts,
            since=self._tickets.redeem(self._subject(offer), offer.ticket, now),
        )
        self._offers[offer.id] = offer, now if candidate.since is None else candidate.since
        verdict = self._controller.decide(candidate, _POOL, now)
        actions: list[Action] = []
        if verdict.action is not controller.Action.WAIT:
            actions.append(self._act(offer.id, verdict, now))
        actions += self._pump(now)
        return actions

    def sending(self, endpoint: str, now: float) -> None:
        """See `Policy`."""
        self._pool.sending(endpoint, now)

    def observed(
        self, endpoint: str, reading: Reading, sent_at: float, now: float
    ) -> Iterable[Action]:
        """See `Policy`."""
        self._pool.observe(endpoint, reading, read_at=sent_at, now=now)
        return self._pump(now)

    def failed(self, endpoint: str, now: float) -> Iterable[Action]:
        """See `Policy`."""
        self._pool.fail(endpoint, "no answer")
        return self._pump(now)

    def served(self, call: str, endpoint: str, now: float) -> None:
        """See `Policy`."""
        self._controller.moved(call, _POOL, endpoint, now)

    def ended(self, call: str, usage: tuple[int, int] | None, now: float) -> Iterable[Action]:
        """See `Policy`."""
        seconds = now - self._admitted_at.pop(call, now)
        self._controller.release(call, _POOL)
        if usage is not None:
            end = End(Outcome.COMPLETED, usage[0], usage[1], seconds)
        elif call in self._cut:
            end = End(Outcome.EVICTED, seconds=seconds)
        else:
            end = End(Outcome.ENGINE_ERROR, seconds=seconds)
        self._cut.discard(call)
        self._controller.settle(call, _POOL, end)
        return self._pump(now)

    def wake(self, now: float) -> Iterable[Action]:
        """See `Policy`."""
        return self._pump(now)

    def closed(self, now: float) -> tuple[bool, ...]:
        """See `Policy`."""
        return tuple(self._pool.is_closed(each, now) for each in self._classes)

    def _pump(self, now: float) -> Iterator[Action]:
        for decision in self._controller.pump(_POOL, now):
            yield self._act(decision.call.id, decision.verdict, now)
        for call in self._controller.evictions(_POOL, now):
            self._cut.add(call)
            yield Evict(call)
        self.wake_at = self._controller.next_deadline()

    def _act(self, call: str, verdict: Verdict, now: float) -> Action:
        offer, since = self._offers.pop(call)
        if verdict.action is controller.Action.ADMIT:
            self._admitted_at[call] = now
            return Send(call, verdict.endpoint)
        if verdict.action is not controller.Action.SHED:
            return Refuse(call, verdict.reason.value, shed=False)
        ticket = self._tickets.issue(self._subject(offer), ident=call, arrived=since, now=now)
        return Refuse(call, verdict.reason.value, ticket=ticket)

    def _subject(self, offer: Offer) -> Subject:
        """Say whose call it is, and which: one that comes back has the same body."""
        body = fingerprint(offer.id.removesuffix(AGAIN).encode())
        return Subject(offer.tenant, self._classes[offer.rank].name, offer.rank, "", body)

    def _classify(self, offer: Offer) -> Classification:
        key = (offer.rank, offer.tenant, offer.task)
        known = self._classifications.get(key)
        if known is None:
            service_class = self._classes[offer.rank]
            known = self._classifications[key] = Classification(
                tenant=offer.tenant,
                task=offer.task,
                service_class=service_class,
                max_output=service_class.max_output,
                max_prompt=service_class.max_prompt,
                stop=(),
                finish_reason=None,
                language=None,
            )
        return known
