"""Whatever happens in whatever order: the ledger and a plain model in memory say the same.

The model keeps Python dictionaries and knows neither transactions nor SQL. After each step every
transaction adds up to 0, every balance is the sum of its entries, and both agree on every balance
and every hold.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from extproc.core.outcomes import Outcome
from extproc.quota import administration, campaign
from extproc.quota.database import migrate, open_database
from extproc.quota.ledger import ABANDONED_SECONDS, KEEP_HOLDS_SECONDS, Ledger, Started
from extproc.quota.periods import PeriodKind
from extproc.quota.plans import Plans, QuotaPlan
from extproc.quota.ports import Hold, Settlement
from extproc.quota.schema import Kind

BERLIN = ZoneInfo("Europe/Berlin")
PLANS = {
    "free": QuotaPlan("free", 1_000, PeriodKind.MONTH, BERLIN),
    "large": QuotaPlan("large", 50_001, PeriodKind.MONTH, BERLIN),
    "daily": QuotaPlan("daily", 240, PeriodKind.DAY, BERLIN),
}
START = 1_774_400_000  # 2026-03-25: a change of the clock and of the month come soon
TENANTS = st.sampled_from(["a", "b", "c"])
OWNERS = st.sampled_from(["one", "two"])
CALLS = st.tuples(st.integers(0, 5), TENANTS).map(lambda call: (f"{call[1]}{call[0]}", call[1]))
TOKENS = st.integers(1, 400)


@dataclass
class Span:
    """A tenant's period in the model."""

    plan: str
    quota: int
    starts: int
    ends: int
    total: int
    used: int = 0
    closed: bool = False


@dataclass
class Model:
    """What the ledger should say, told without it."""

    plan: dict[str, str] = field(default_factory=dict)
    spans: dict[str, list[Span]] = field(default_factory=dict)
    holds: dict[str, list[Any]] = field(default_factory=dict)
    """State, owner, and when it was settled, by id."""
    charged: set[str] = field(default_factory=set)
    seen: dict[str, int] = field(default_factory=dict)
    campaigns: set[str] = field(default_factory=set)
    gifts: set[tuple[Kind, str]] = field(default_factory=set)

    def of(self, tenant: str) -> QuotaPlan:
        return PLANS[self.plan.get(tenant, "free")]

    def span(self, tenant: str, at: int, now: int | None = None) -> Span:
        mine = self.spans.setdefault(tenant, [])
        for span in mine:
            if span.starts <= at < span.ends:
                return span
        plan = self.of(tenant)
        period = plan.period(at)
        starts = max([period.starts, *(each.ends for each in mine if each.ends <= at)])
        ends = min([period.ends, *(each.starts for each in mine if each.starts > at)])
        share = plan.tokens
        if (starts, ends) != (period.starts, period.ends):
            share = plan.rest(period, 1000 * starts) - plan.rest(period, 1000 * ends)
        over = now is not None and ends <= now
        quota = 0 if over else plan.tokens
        span = Span(plan.name, quota, starts, ends, 0 if over else share, closed=over)
        mine.append(span)
        return span

    def apply(self, owner: str, records: list[Any], now: int) -> None:
        """What comes first of an exchange counts, a hold or an end; of its ends the first."""
        self.seen[owner] = now
        ends: set[str] = set()
        for record in records:
            if isinstance(record, Started):
                self.release(lambda whose: whose == owner, now)
                continue
            if record.id not in self.holds:
                self.holds[record.id] = ["pending", owner, None]
            if isinstance(record, Settlement) and record.id not in ends:
                ends.add(record.id)
                self.settle(record, now)

    def settle(self, record: Settlement, now: int) -> None:
        hold = self.holds[record.id]
        if hold[0] != "pending":
            return
        hold[0], hold[2] = ("captured" if record.tokens else "released"), now
        if record.tokens and record.id not in self.charged:
            self.charged.add(record.id)
            span = self.span(record.tenant, int(record.at), now)
            span.used += record.tokens
            if span.closed:
                span.total = span.used

    def release(self, whose: Callable[[str], bool], now: int) -> None:
        for hold in self.holds.values():
            if hold[0] == "pending" and whose(hold[1]):
                hold[0], hold[2] = "released", now

    def sweep(self, owner: str, now: int) -> None:
        self.seen[owner] = now
        self.release(lambda whose: self.seen[whose] <= now - ABANDONED_SECONDS, now)
        for ident, (_, _, settled) in list(self.holds.items()):
            if settled is not None and settled < now - KEEP_HOLDS_SECONDS:
                del self.holds[ident]

    def roll(self, now: int) -> None:
        renewed = set()
        for tenant, spans in self.spans.items():
            for span in spans:
                if not span.closed and span.ends <= now:
                    span.closed, span.total = True, span.used
                    renewed.add(tenant)
        for tenant, spans in self.spans.items():
            if tenant in renewed and not any(each.starts <= now < each.ends for each in spans):
                self.span(tenant, now)

    def change(self, tenant: str, plan: QuotaPlan, now: int) -> None:
        self.plan[tenant] = plan.name
        for span in list(self.spans.get(tenant, [])):
            if span.closed or not span.starts <= now < span.ends or span.plan == plan.name:
                continue
            period = plan.period(now)
            if period.ends == span.ends:
                old = replace(plan, tokens=span.quota)
                span.total += plan.rest(period, 1000 * now) - old.rest(period, 1000 * now)
                span.plan, span.quota = plan.name, plan.tokens
            elif now > span.starts:
                span.ends, span.closed, span.total = now, True, span.used
                self.span(tenant, now)

    def compensate(self, ident: str, below: int, bonus: int, now: int) -> None:
        if ident in self.campaigns:
            return
        self.campaigns.add(ident)
        for spans in self.spans.values():
            for span in spans:
                if span.closed or not span.starts <= now < span.ends:
                    continue
                if span.used * 100 < span.total * below:
                    span.used = 0
                else:
                    span.total += max(0, -(-span.total * bonus // 100))


class Books(RuleBasedStateMachine):
    """The ledger beside its model, seen by two Tidegates and an operator."""

    url: Callable[[], str]

    def __init__(self) -> None:
        super().__init__()
        self.now = START
        self.engine = open_database(type(self).url())
        migrate(self.engine)
        self.model = Model()
        self.batches: list[tuple[str, list[Any]]] = []
        self.heard: dict[str, tuple[dict[str, int], int]] = {}
        self._open()

    def _open(self) -> None:
        tenants = {name: PLANS[plan] for name, plan in self.model.plan.items()}
        self.plans = Plans(PLANS, tenants, PLANS["free"], frozenset())
        self.ledgers = {}
        for owner in ("one", "two"):
            self.ledgers[owner] = Ledger(self.engine, self.plans, lambda: float(self.now))
            self.ledgers[owner].open(owner)
            remaining, last = self.ledgers[owner].remaining()
            self.heard[owner] = (dict(remaining), last)

    def _hear(self) -> None:
        """Let every Tidegate hear what others have moved."""
        for owner, (view, last) in self.heard.items():
            moved, last = self.ledgers[owner].movements(last, 1000)
            for each in moved:
                view[each.tenant] = self._view(view, each.tenant) + each.tokens
            self.heard[owner] = (view, last)

    def _view(self, view: dict[str, int], tenant: str) -> int:
        return view.get(tenant, self.model.of(tenant).tokens)

    def _apply(self, owner: str, records: list[Any]) -> None:
        self.ledgers[owner].apply(records)
        opened: set[str] = set()
        for record in records:  # whoever calls has a subscription
            if not isinstance(record, Started) and record.id not in opened:
                opened.add(record.id)
                self.model.span(record.tenant, int(record.at), self.now)
        ended: set[str] = set()
        for record in records:
            if isinstance(record, Settlement) and record.id not in ended:
                ended.add(record.id)
                self.model.span(record.tenant, int(record.at), self.now)
        before = set(self.model.charged)
        self.model.apply(owner, records, self.now)
        view, _ = self.heard[owner]
        for record in records:
            if isinstance(record, Settlement) and record.id in self.model.charged - before:
                before.add(record.id)
                view[record.tenant] = self._view(view, record.tenant) - record.tokens
        self.batches.append((owner, records))

    @rule(owner=OWNERS, calls=st.lists(st.tuples(CALLS, TOKENS), max_size=4))
    def calls_are_let_in(self, owner: str, calls: list[tuple[tuple[str, str], int]]) -> None:
        self._apply(
            owner, [Hold(ident, tenant, "", tokens, self.now) for (ident, tenant), tokens in calls]
        )

    @rule(
        owner=OWNERS,
        ends=st.lists(
            st.tuples(
                CALLS,
                TOKENS,
                st.sampled_from(Outcome),
                st.sampled_from([0, 0, 0, 3000, 40 * 86_400]),
            ),
            max_size=4,
        ),
    )
    def calls_end(self, owner: str, ends: list[tuple[tuple[str, str], int, Outcome, int]]) -> None:
        charged = (Outcome.COMPLETED, Outcome.CLIENT_GONE)
        self._apply(
            owner,
            [
                Settlement(
                    ident, tenant, "", outcome, tokens if outcome in charged else 0, False,
                    self.now - late,
                )
                for (ident, tenant), tokens, outcome, late in ends
            ],
        )  # fmt: skip

    @rule(data=st.data())
    def a_batch_arrives_again(self, data: st.DataObject) -> None:
        if self.batches:
            owner, records = data.draw(st.sampled_from(self.batches))
            if not any(isinstance(record, Started) for record in records):
                self._apply(owner, records)

    @rule(owner=OWNERS)
    def a_process_starts(self, owner: str) -> None:
        self._apply(owner, [Started(self.now)])

    @rule(hours=st.integers(1, 60))
    def time_passes(self, hours: int) -> None:
        self.now += 3600 * hours
        self.ledgers["one"].roll()
        self.model.roll(self.now)

    @rule(tenant=TENANTS, plan=st.sampled_from(sorted(PLANS)))
    def a_plan_changes(self, tenant: str, plan: str) -> None:
        self.now += 61  # the clock of a configuration and that of a call are never quite the same
        self.ledgers["one"].roll()
        self.model.roll(self.now)
        self.model.change(tenant, PLANS[plan], self.now)
        self._open()

    @rule(
        tenant=TENANTS,
        tokens=st.integers(-500, 500),
        kind=st.sampled_from([Kind.GRANT, Kind.ADJUST]),
        ident=st.integers(0, 6),
    )
    def tokens_are_given_or_taken(self, tenant: str, tokens: int, kind: Kind, ident: int) -> None:
        self.model.span(tenant, self.now)
        if (kind, str(ident)) not in self.model.gifts:
            self.model.gifts.add((kind, str(ident)))
            self.model.span(tenant, self.now).total += tokens
        administration.give(
            self.engine, self.plans, tenant, kind, tokens, str(ident), "", 1000 * self.now
        )

    @rule(
        ident=st.sampled_from(["618", "1111"]), below=st.integers(0, 100), bonus=st.integers(0, 100)
    )
    def all_are_compensated(self, ident: str, below: int, bonus: int) -> None:
        try:
            for _ in campaign.apply(
                self.engine, ident, campaign.Rule(100 * below, 100 * bonus), 1000 * self.now
            ):
                pass
        except campaign.CampaignError:
            assert ident in self.model.campaigns
        self.model.compensate(ident, below, bonus, self.now)

    @rule()
    def a_sweep(self) -> None:
        self.ledgers["one"].sweep()
        self.model.sweep("one", self.now)

    def _rows(self, statement: str) -> list[Any]:
        with self.engine.connect() as connection:
            return [tuple(row) for row in connection.exec_driver_sql(statement)]

    @invariant()
    def every_transaction_adds_up_to_nothing(self) -> None:
        sums = "SELECT transaction_id FROM entries GROUP BY transaction_id HAVING SUM(amount) <> 0"
        assert self._rows(sums) == []

    @invariant()
    def every_balance_is_the_sum_of_its_entries(self) -> None:
        entries: dict[int, dict[str, int]] = {}
        for subscription, account, amount in self._rows(
            "SELECT subscription_id, account, SUM(amount) FROM entries GROUP BY 1, 2"
        ):
            entries.setdefault(subscription, {})[account] = int(amount)
        for ident, *balances in self._rows("SELECT id, issued, available, used FROM subscriptions"):
            mine = entries.get(ident, {})
            assert balances == [mine.get(name, 0) for name in ("issued", "available", "used")]

    @invariant()
    def the_model_says_the_same(self) -> None:
        rows = self._rows(
            "SELECT tenant, plan, quota, starts_at / 1000, ends_at / 1000, -issued, used, closed FROM subscriptions"
        )
        spans = [
            (
                tenant,
                each.plan,
                each.quota,
                each.starts,
                each.ends,
                each.total,
                each.used,
                each.closed,
            )
            for tenant, mine in self.model.spans.items()
            for each in mine
        ]
        assert sorted(rows) == sorted(spans)
        holds = {ident: state for ident, (state, _, _) in self.model.holds.items()}
        assert dict(self._rows("SELECT id, state FROM holds")) == holds

    @invariant()
    def who_counts_along_knows_what_is_left(self) -> None:
        self._hear()
        for view, _ in self.heard.values():
            for tenant in ("a", "b", "c"):
                current = [
                    each.total - each.used
                    for each in self.model.spans.get(tenant, [])
                    if each.starts <= self.now < each.ends
                ]
                left = current[0] if current else self.model.of(tenant).tokens
                assert self._view(view, tenant) == left

    def teardown(self) -> None:
        self.engine.dispose()


@pytest.mark.parametrize(("kind", "examples"), [("sqlite", 40), ("postgresql", 6)])
def test_the_ledger_and_a_plain_model_agree(
    kind: str, examples: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    numbers = count()

    def new_sqlite() -> str:
        return f"sqlite:///{tmp_path / f'{next(numbers)}.db'}"

    class OnKind(Books):
        url = staticmethod(
            new_sqlite if kind == "sqlite" else request.getfixturevalue("postgres").new_database
        )

    run_state_machine_as_test(
        OnKind,
        settings=settings(
            max_examples=examples,
            stateful_step_count=30,
            deadline=None,
            phases=[Phase.reuse, Phase.generate],  # making it smaller takes minutes
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )
