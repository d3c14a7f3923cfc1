"""The desk where calls of agents report: whose run it is, and whether it has to wait for others.

Rules this module keeps:

* A call that waits for its predecessors is judged by the gates when they are done, or when it has
  waited long enough; not before, because it would hold what others can use.
* Whoever leaves while waiting is forgotten at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from extproc.core.agents.rules import Agents
from extproc.core.agents.runs import Member, Owner
from extproc.core.classes import Claim, ServiceClass
from extproc.core.outcomes import Outcome
from extproc.core.records import Ended
from extproc.edge.agent_identity import Source, member_of
from extproc.edge.exchange import Resolution
from extproc.edge.responder import Case
from extproc.openai.calls import Call
from extproc.openai.sameness import fingerprint

Later = Callable[[Resolution], None]


class AgentDesk:
    """Keeps the calls that wait for others; ``default_tenant`` owns the runs of nobody known."""

    def __init__(
        self,
        agents: Agents,
        sources: Sequence[Source],
        *,
        default_tenant: str,
        clock: Callable[[], float],
        bell: Callable[[], None],
    ) -> None:
        self.agents = agents
        self._sources = tuple(sources)
        self._default_tenant = default_tenant
        self._clock = clock
        self._bell = bell
        self._parked: dict[str, tuple[Case, Later]] = {}

    def member(self, headers: Mapping[str, str], call: Call, claim: Claim) -> Member:
        """Return where a call belongs."""
        trusted = claim.trusted and not claim.ambiguous
        owner = Owner(claim.tenant or self._default_tenant, trusted)
        return member_of(self._sources, headers, call, owner)

    def root_class(self, member: Member) -> ServiceClass | None:
        """Return the class of the run's root, or None for a root."""
        return self.agents.root_class(member)

    def began(self, member: Member) -> float | None:
        """Return when the run was first let in, or None."""
        return self.agents.began(member)

    def arrive(self, case: Case, member: Member, later: Later, now: float) -> bool:
        """Take a readable call in; say whether it waits here, until `ready` returns it."""
        candidate, call = case.candidate, case.call
        print_ = fingerprint(call) if call is not None and member.run else None
        service_class = candidate.classification.service_class
        waits = self.agents.arrive(
            candidate.id, member, print_ or candidate.id.encode(), service_class, now
        )
        if waits:
            self._parked[candidate.id] = case, later
        return waits

    def ready(self, now: float) -> list[tuple[Case, Later]]:
        """Return the calls that are to be judged now."""
        ready = self.agents.ready(now)
        return [self._parked.pop(ident) for ident in ready if ident in self._parked]

    def dismiss(self) -> list[tuple[Case, Later]]:
        """Let all go that wait here, whatever they wait for, and return them."""
        parked, self._parked = self._parked, {}
        return list(parked.values())

    def next_deadline(self) -> float:
        """Return when `ready` has to be called at the latest; infinite where nobody waits."""
        return self.agents.next_deadline()

    def admitted(self, exchange: str) -> None:
        """Hear that a call goes to an engine; `ended` will follow."""
        self.agents.admitted(exchange, self._clock())

    def left(self, exchange: str) -> bool:
        """Hear that a call was turned away or is gone; say whether it waited here.

        Harmless where it was admitted: its end is told by `ended`.
        """
        waited = self._parked.pop(exchange, None) is not None
        self.agents.released(exchange, self._clock())
        self._ring()
        return waited

    def ended(self, record: Ended) -> None:
        """Hear how an admitted call ended."""
        self.agents.ended(
            record.id,
            self._clock(),
            completed=record.outcome is Outcome.COMPLETED,
            tokens=(record.prompt_tokens or 0) + (record.completion_tokens or 0),
        )
        self._ring()

    def _ring(self) -> None:
        if self._parked:
            self._bell()
