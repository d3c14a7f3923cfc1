"""What operators do with a quota, and what a statement says of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from extproc.core.outcomes import Outcome
from extproc.quota import administration, campaign
from extproc.quota.administration import Line, NoSubscriptionError
from extproc.quota.plans import Plans
from extproc.quota.schema import Kind

NOW = 1_780_272_000_000


def show(books: Any, tenant: str = "pay") -> Any:
    return administration.show(books.engine, books.plans, tenant, NOW)


def give(books: Any, kind: Kind, tokens: int, ident: str) -> Any:
    return administration.give(books.engine, books.plans, "pay", kind, tokens, ident, "why", NOW)


def amounts(balance: Any) -> tuple[int, int, int, int]:
    return balance.total, balance.used, balance.available, balance.held


def test_a_tenant_that_never_called_has_its_plans_quota(books: Any) -> None:
    balance = show(books)
    assert (balance.plan, *amounts(balance)) == ("free", 1000, 0, 1000, 0)
    assert books.rows("SELECT count(*) FROM subscriptions") == [(0,)]


def test_what_is_used_and_held_is_shown(books: Any) -> None:
    books.ledger().apply(
        [books.end("a", 70), books.hold("b", tokens=30), books.hold("c", tokens=5)]
    )
    assert amounts(show(books)) == (1000, 70, 930, 35)


def test_a_tenant_without_a_quota(books: Any, make_plans: Callable[..., Plans]) -> None:
    plans = make_plans(free_of_quota=None)
    with pytest.raises(NoSubscriptionError, match="has no plan with a quota"):
        administration.show(books.engine, plans, "free_of_quota", NOW)
    with pytest.raises(NoSubscriptionError, match="has no plan with a quota"):
        administration.give(books.engine, plans, "free_of_quota", Kind.GRANT, 5, "1", "", NOW)


def test_tokens_are_given_and_taken_once_per_id(books: Any) -> None:
    balance, changed = give(books, Kind.GRANT, 500, "a")
    assert (changed, *amounts(balance)) == (True, 1500, 0, 1500, 0)
    balance, changed = give(books, Kind.GRANT, 500, "a")
    assert (changed, *amounts(balance)) == (False, 1500, 0, 1500, 0)
    balance, changed = give(books, Kind.ADJUST, -200, "a")
    assert (changed, *amounts(balance)) == (True, 1300, 0, 1300, 0)
    books.check()


def test_a_running_tidegate_hears_of_it(books: Any) -> None:
    ledger = books.ledger()
    _, last = ledger.remaining()
    give(books, Kind.GRANT, 500, "a")
    moved, _ = ledger.movements(last, 10)
    assert [(each.tenant, each.tokens) for each in moved] == [("pay", 500)]


def test_a_statement_explains_each_charge(books: Any) -> None:
    ledger = books.ledger()
    ledger.apply(
        [books.hold("a"), books.end("a", 70), books.end("free", 0, outcome=Outcome.TIMEOUT)]
    )
    ledger.apply([replace(books.end("b", 40, outcome=Outcome.CLIENT_GONE), estimated=True)])
    give(books, Kind.GRANT, 500, "a")
    for _ in campaign.apply(books.engine, "618", campaign.Rule.of(0.25, 0.25), NOW):
        pass
    with books.engine.connect() as connection:
        lines = list(administration.statement(connection, show(books).id))
    assert lines == [
        Line(NOW, Kind.OPENING, "", "", False, 1000, 1000, "free"),
        Line(NOW, Kind.CHARGE, "a", "completed", False, -70, 930, ""),
        Line(NOW, Kind.CHARGE, "b", "client_gone", True, -40, 890, ""),
        Line(NOW, Kind.GRANT, "", "", False, 500, 1390, "why"),
        Line(NOW, Kind.RESET, "", "", False, 110, 1500, "campaign 618"),
    ]
