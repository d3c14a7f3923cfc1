"""Counts what tenants spend together with the other Tidegates: a `LocalMeter` with shared books.

Rules this module keeps:

* A call that everything else has let in is asked about: one round trip, together with all others
  that are due, while its exchange waits. Nothing else asks; what the own books refuse is refused.
* The own books of the buckets are what the last answer said. What is on its way to Redis is written
  into them only where it turns out to be lost.
* Of the quota Redis only has what the ledger has not: what each Tidegate holds, and what it has
  charged within the last `LINGER` seconds, in which the others hear of it from the ledger. While the
  ledger is behind, it has that as well.
* Where Redis may have forgotten, or may have missed something, it is told again what is held.
* Without an answer each Tidegate has one Nth of every bucket and of what remains, N being how many
  there were. No call fails for that.
* A refusal by the own books has them brought up to date, so that the next call is judged by what
  others have given back meanwhile.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from extproc.core.capacity import Pool
from extproc.core.classes import Payer
from extproc.core.controller import Candidate, Refusal
from extproc.core.limits import Rate
from extproc.core.metering import Answered, Taking
from extproc.core.reasons import Reason
from extproc.quota.charges import estimate
from extproc.quota.meter import Held, LocalMeter
from extproc.quota.ports import Outbox
from extproc.sharing.link import MEMBERS, SILENCE, Link, LinkDownError, Script

LINGER = 5.0
"""Seconds in which others hear of a charge from the ledger."""
MOST_CHARGES = 1 << 16
"""Charges that are remembered while the ledger is behind; of more, the oldest are forgotten."""
REFRESH = 0.1
"""Seconds in which the books of one account are brought up to date at most once."""
UNLIMITED = 1 << 60
"""Tokens that are free where there is no quota."""

_ACCOUNTS = Script("accounts.lua")
_SERVERS_TIME = -1.0


@dataclass(frozen=True, slots=True, eq=False)
class Adjustment:
    """What an account's buckets are to be set right by; tells as well what is held."""

    payer: Payer
    requests: int = 0
    tokens: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """Asks whether a call may go."""

    exchange: str
    held: Held
    answered: Answered

    @property
    def payer(self) -> Payer:
        """Whose call it is."""
        return self.held.payer

    @property
    def requests(self) -> int:
        """What it takes of that bucket."""
        return 1

    @property
    def tokens(self) -> int:
        """What it takes of that bucket, and holds."""
        return self.held.before.tokens


class SharedMeter(LocalMeter):
    """See the module's rules.

    Args:
        outbox, wall_clock: as of `LocalMeter`.
        link: the way to Redis.
        name: this Tidegate's, unique.
        clock: that of all ``now``.
        behind: says whether the ledger has not been told all that was charged a second ago.
    """

    def __init__(
        self,
        outbox: Outbox | None,
        wall_clock: Callable[[], float],
        *,
        link: Link,
        name: str,
        clock: Callable[[], float],
        behind: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__(outbox, wall_clock)
        self._link = link
        self._name = name
        self._clock = clock
        self._behind = behind
        self._up_to_date_from = -math.inf
        self._queue: list[Adjustment | Question] = []
        self._work = asyncio.Event()
        self._asked: dict[str, Question] = {}
        self._charged: dict[str, int] = {}
        self._charges: deque[tuple[float, Payer, int]] = deque()
        self._told: dict[str, Payer] = {}
        # By account, what was heard or done last first: bounded by what is fresh.
        self._others: dict[str, tuple[float, int]] = {}
        self._refreshed: dict[str, float] = {}

    def take(self, call: Candidate, pool: Pool, now: float, answered: Answered) -> Taking | Refusal:
        """See `extproc.core.metering.Meter`; asks while the link is up."""
        payer = call.classification.payer
        if payer is None or not self._link.up:
            return super().take(call, pool, now, answered)
        question = Question(call.id, Held(payer, estimate(call, pool)), answered)
        refusal = self._refused(question, now)
        if refusal is not None:
            return refusal
        self._asked[call.id] = question
        self._send(question)
        return Taking.ASKED

    def give_back(self, exchange: str, now: float) -> None:
        """See `extproc.core.metering.Meter`."""
        if self._asked.pop(exchange, None) is None:
            super().give_back(exchange, now)

    def look_at_rate(self, payer: Payer, tokens: int, now: float) -> Refusal | None:
        """See `LocalMeter.look_at_rate`."""
        refusal = super().look_at_rate(payer, tokens, now)
        if refusal is not None:
            self._refresh(payer, now)
        return refusal

    def look_at_quota(self, payer: Payer, tokens: int) -> Refusal | None:
        """See `LocalMeter.look_at_quota`."""
        refusal = super().look_at_quota(payer, tokens)
        if refusal is not None:
            self._refresh(payer, self._clock())
        return refusal

    def free(self, account: str, quota: int) -> int:
        """See `LocalMeter.free`; without what others hold, as last heard."""
        _, others = self._others.get(account, (0.0, 0))
        return super().free(account, quota) - others

    def adjust(self, payer: Payer, requests: int, tokens: int, cost: int, now: float) -> None:
        """See `LocalMeter.adjust`."""
        if cost and payer.plan.quota is not None:
            self._charged[payer.account] = self._charged.get(payer.account, 0) + cost
            self._charges.append((now + LINGER, payer, cost))
            if len(self._charges) > MOST_CHARGES:
                self._forget_charge()
        if self._link.up:
            self._send(Adjustment(payer, requests, tokens))
        else:
            super().adjust(payer, requests, tokens, cost, now)

    def reckon(self, *, up: bool, members: int) -> None:
        """Count with whole buckets while the link is up, else with this one's share of them."""
        self.buckets.price = 1 if up else members

    def tell_again(self) -> None:
        """Tell Redis what is held, of every account of which it was told something."""
        for payer in list(self._told.values()):
            self._send(Adjustment(payer))

    def sweep(self, now: float) -> None:
        """Forget what is old; to be called a few times a second."""
        if self._behind():
            self._up_to_date_from = now + LINGER
        stale: dict[str, Payer] = {}
        while self._charges and max(self._charges[0][0], self._up_to_date_from) <= now:
            payer = self._forget_charge()
            stale[payer.account] = payer
        for payer in stale.values() if self._link.up else ():
            self._send(Adjustment(payer))
        while self._others and (first := next(iter(self._others.items())))[1][0] <= now:
            del self._others[first[0]]
        while self._refreshed and (next_ := next(iter(self._refreshed.items())))[1] <= now:
            del self._refreshed[next_[0]]

    async def run(self) -> None:
        """Tell and ask Redis whenever there is something to say, until cancelled."""
        while True:
            await self._work.wait()
            self._work.clear()
            said, self._queue = self._queue, []
            try:
                await self._talk(said)
            except LinkDownError:
                # What came while it was tried would fare no better.
                said, self._queue = [*said, *self._queue], []
                self._go_on_alone(said)

    def _forget_charge(self) -> Payer:
        _, payer, cost = self._charges.popleft()
        self._charged[payer.account] -= cost
        if not self._charged[payer.account]:
            del self._charged[payer.account]
        return payer

    def _refused(self, question: Question, now: float) -> Refusal | None:
        payer, tokens = question.payer, question.tokens
        return self.look_at_rate(payer, tokens, now) or self.look_at_quota(payer, tokens)

    def _refresh(self, payer: Payer, now: float) -> None:
        """Have the books of an account brought up to date, soon."""
        if self._link.up and self._refreshed.get(payer.account, now) <= now:
            self._refreshed.pop(payer.account, None)
            self._refreshed[payer.account] = now + REFRESH
            self._send(Adjustment(payer))

    def _send(self, what: Adjustment | Question) -> None:
        self._queue.append(what)
        self._work.set()

    async def _talk(self, said: Sequence[Adjustment | Question]) -> None:
        places: dict[str, int] = {}
        for each in said:
            places.setdefault(each.payer.account, len(places) + 2)
        now = self._clock()
        operations = [self._operation(each, places[each.payer.account], now) for each in said]
        keys = (MEMBERS, *(f"account:{account}" for account in places))
        told = msgspec.msgpack.encode((self._name, SILENCE, _SERVERS_TIME, operations))
        there, replies = msgspec.msgpack.decode(await self._link.call(_ACCOUNTS, keys, told))
        now = self._clock()
        for each, (done, requests, tokens, others) in zip(said, replies, strict=True):
            account = each.payer.account
            self.buckets.learn(account, now + (requests - there), now + (tokens - there), now)
            self._others.pop(account, None)
            if others:
                self._others[account] = now + SILENCE, others
            if isinstance(each, Question):
                self._hear(each, done, now)

    def _operation(self, said: Adjustment | Question, place: int, now: float) -> tuple[Any, ...]:
        """Return what ``accounts.lua`` calls an operation."""
        account, plan = said.payer.account, said.payer.plan
        requests, tokens = self.buckets.full_at(account)
        held = self.holds.held(account) + self._charged.get(account, 0)
        if held or isinstance(said, Question):
            self._told[account] = said.payer
        else:
            self._told.pop(account, None)
        return (
            place,
            isinstance(said, Question),
            *_pace(plan.requests),
            *_pace(plan.tokens),
            said.requests,
            said.tokens,
            UNLIMITED if plan.quota is None else self.holds.free(account, plan.quota),
            held,
            max(0.0, requests - now),
            max(0.0, tokens - now),
        )

    def _hear(self, question: Question, done: bool, now: float) -> None:
        """Pass Redis's answer on."""
        if self._asked.pop(question.exchange, None) is None:
            if done:  # its client has left meanwhile
                self._send(Adjustment(question.payer, -question.requests, -question.tokens))
        elif done:
            self.hold(question.exchange, question.held)
            question.answered(None)
        else:
            # The own books know by now why not, unless what was missing has just dripped in.
            soon = Refusal(Reason.RATE_LIMITED, retry_after=0.001)
            question.answered(self._refused(question, now) or soon)

    def _go_on_alone(self, said: Sequence[Adjustment | Question]) -> None:
        """Decide by the own books what Redis has not answered."""
        now = self._clock()
        for each in said:
            account, plan = each.payer.account, each.payer.plan
            if isinstance(each, Adjustment):
                self.buckets.correct(account, plan, each.requests, each.tokens, now)
            elif self._asked.pop(each.exchange, None) is not None:
                refusal = self._refused(each, now)
                if refusal is None:
                    self.buckets.correct(account, plan, each.requests, each.tokens, now)
                    self.hold(each.exchange, each.held)
                each.answered(refusal)


def _pace(rate: Rate | None) -> tuple[float, float]:
    return (0.0, 0.0) if rate is None else (rate.interval, rate.window)
