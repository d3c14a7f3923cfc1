"""The desk where calls of agents report: whose run it is, what they wait for, whom they follow.

Rules this module keeps:

* A call that waits for its predecessors is judged by the gates when they are done, or when it has
  waited long enough; not before, because it would hold what others can use.
* A call that asks for what another of its run is getting follows that one, if it wants to. It passes no
  gate but its run's, holds nothing and costs nothing. Where the other comes to nothing, or takes too
  long, it is judged as if it had just come.
* Whoever leaves while waiting is forgotten at once.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import partial

from extproc import contract
from extproc.core.agents.merging import Merging
from extproc.core.agents.rules import Agents
from extproc.core.agents.runs import Member, Owner
from extproc.core.classes import Claim, ServiceClass
from extproc.core.outcomes import Outcome
from extproc.core.records import Ended
from extproc.edge.agent_identity import Source, member_of
from extproc.edge.exchange import Editor, Request
from extproc.edge.messages import Answer, Event
from extproc.edge.responder import Case
from extproc.edge.sharing import Keeper, Shared, Shelf, worth_keeping
from extproc.openai.calls import Call
from extproc.openai.sameness import fingerprint

_OWN = ("off", "no", "false", "0")
"""What callers write who want an answer of their own."""


class Arrival(Enum):
    """What becomes of a call that has reported."""

    GOES_ON = "goes on"
    WAITS = "waits"
    FOLLOWS = "follows"


class AgentDesk:
    """Keeps the calls that wait for others.

    Args:
        agents: the runs.
        sources: where calls name their run.
        default_tenant: who owns the runs of nobody known.
        merge_wait: seconds that a call follows another at most; 0: calls do not follow.
        clock: tells the time of everything here, in seconds.
        bell: rung where `ready` or `answers` may have something.
    """

    def __init__(
        self,
        agents: Agents,
        sources: Sequence[Source],
        *,
        default_tenant: str,
        merge_wait: float,
        clock: Callable[[], float],
        bell: Callable[[], None],
    ) -> None:
        self.agents = agents
        self.merging = Merging()
        self._sources = tuple(sources)
        self._default_tenant = default_tenant
        self._merge_wait = merge_wait
        self._clock = clock
        self._bell = bell
        self._parked: dict[str, Case] = {}
        self._due: list[str] = []
        self._overdue: deque[tuple[float, str]] = deque()
        self._answers: list[tuple[Case, Shared]] = []
        self._keepers: dict[str, Keeper] = {}
        self._shelf = Shelf()
        self._owed: dict[str, int] = {}

    # Calls that come.

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

    def arrive(self, case: Case, request: Request, now: float, *, act: bool) -> Arrival:
        """Take a readable call in; where it stays here, `ready` or `answers` returns it.

        ``act``: it may stay; else it is only said what would become of it.
        """
        member = case.member
        if member is None:
            return Arrival.GOES_ON
        candidate, call = case.candidate, case.call
        ident, who = candidate.id, candidate.classification
        print_ = fingerprint(call) if call is not None and member.run else None
        waits = self.agents.arrive(ident, member, print_ or ident.encode(), who.service_class, now)
        if act and print_ is not None and self._mergeable(request):
            # Whatever bears on the answer beside the body, or on when it may be had.
            key = (member.owner, member.run, member.depends_on, request.path, print_, who.task)
            if not self.merging.can_follow(key):
                self.merging.lead(key, ident)
            elif self.agents.follow(ident):
                self.merging.follow(key, ident)
                self._parked[ident] = case
                self._overdue.append((now + self._merge_wait, ident))
                return Arrival.FOLLOWS
        if waits and act:
            self._parked[ident] = case
        return Arrival.WAITS if waits else Arrival.GOES_ON

    def _mergeable(self, request: Request) -> bool:
        wish = request.headers.get(contract.MERGE_HEADER, "")
        return self._merge_wait > 0.0 and wish.strip().lower() not in _OWN

    # Calls that have waited.

    def ready(self, now: float) -> list[Case]:
        """Return the calls that are to be judged now."""
        due, self._due = self._due, []
        found = [each for each in self.agents.ready(now) if not self.merging.follows(each)]
        found += [each for each in due if not self.agents.pending(each)]
        while self._overdue and self._overdue[0][0] <= now:
            _, ident = self._overdue.popleft()
            if self.merging.follows(ident):
                self.merging.leave(ident)
                found.append(ident)
        return [self._parked.pop(each) for each in dict.fromkeys(found) if each in self._parked]

    def answers(self) -> list[tuple[Case, Shared]]:
        """Return the calls that have an answer now: another's."""
        answers, self._answers = self._answers, []
        return answers

    def next_deadline(self) -> float:
        """Return when `ready` has to be called at the latest; infinite where nobody waits."""
        overdue = self._overdue[0][0] if self._overdue else math.inf
        return min(overdue, self.agents.next_deadline())

    def dismiss(self) -> list[Case]:
        """Let all go that wait here, whatever they wait for, and return them."""
        parked, self._parked = self._parked, {}
        for ident in parked:
            self.merging.leave(ident)
        self._due.clear()
        return list(parked.values())

    # Calls on their way, and their ends.

    def admitted(self, exchange: str) -> None:
        """Hear that a call goes to an engine; `ended` will follow."""
        self.agents.admitted(exchange, self._clock())

    def answered(
        self, exchange: str, event: Event, reaction: Answer | Editor | None
    ) -> Answer | Editor | None:
        """Hear how a call is answered, and what is to be done about that; return what is done."""
        if not self.merging.leads(exchange):
            return reaction
        followed = self.merging.followers(exchange) > 0
        if (
            isinstance(reaction, Answer)
            or event.end_of_stream
            or not worth_keeping(event.headers, followed=followed)
        ):
            self._come_to_nothing(exchange)
            return reaction
        keeper = self._keepers[exchange] = Keeper(
            int(event.headers[":status"]),
            event.headers.get("content-type", ""),
            inner=reaction,
            shelf=self._shelf,
            whole=partial(self._whole, exchange),
            too_long=partial(self._scatter, exchange),
        )
        return keeper

    def merged(self, exchange: str) -> None:
        """Hear that a call was answered with what another got."""
        self.agents.merged(exchange, self._clock())
        self._ring()

    def left(self, exchange: str) -> bool:
        """Hear that a call was turned away or is gone; say whether it waited here.

        Harmless where it was admitted: its end is told by `ended`.
        """
        waited = self._parked.pop(exchange, None) is not None
        if self.agents.released(exchange, self._clock()):
            self._come_to_nothing(exchange)
        self._ring()
        return waited

    def ended(self, record: Ended) -> None:
        """Hear how an admitted call ended."""
        completed = record.outcome is Outcome.COMPLETED
        tokens = (record.prompt_tokens or 0) + (record.completion_tokens or 0)
        if completed and record.id in self._keepers and self.merging.leads(record.id):
            self._whole(record.id)
        self._come_to_nothing(record.id)
        keeper = self._keepers.pop(record.id, None)
        if keeper is not None:
            keeper.drop()
        self.agents.tokens_saved += tokens * self._owed.pop(record.id, 0)
        self.agents.ended(record.id, self._clock(), completed=completed, tokens=tokens)
        self._ring()

    def _whole(self, leader: str) -> None:
        """Give a leader's answer to those who follow, if all of it is there."""
        answer = self._keepers[leader].answer
        if answer is not None:
            followers = self.merging.dissolve(leader)
            self._owed[leader] = len(followers)
            self._answers += [(self._parked.pop(each), answer) for each in followers]
            self._ring()

    def _scatter(self, leader: str) -> None:
        """Let those who follow go each its own way: what they wait for cannot be kept."""
        self._due += self.merging.dissolve(leader)
        self._ring()

    def _come_to_nothing(self, exchange: str) -> None:
        """Take a call out of its group; who leads in its stead is judged."""
        heir = self.merging.leave(exchange)
        if heir is not None:
            self._due.append(heir)
            self._ring()

    def _ring(self) -> None:
        if self._parked or self._answers:
            self._bell()
