"""What operators look through, page by page."""

from __future__ import annotations

from typing import Any

import pytest

from extproc.quota import administration, browse, campaign
from extproc.quota.campaign import Affected, Rule
from extproc.quota.schema import Kind

NOW = 1_780_272_000_000


@pytest.fixture
def busy(books: Any) -> Any:
    """Four tenants who have used some of their 1000 tokens."""
    used = {"pay": 900, "Pay": 100, "pay-eu": 0, "支付": 300}
    books.ledger().apply([books.end(f"{each}-1", tokens, each) for each, tokens in used.items()])
    return books


def names(books: Any, **more: Any) -> list[str]:
    wanted: dict[str, Any] = {"prefix": "", "after": "", "limit": 10} | more
    return browse.tenants(books.engine, **wanted)


def test_tenants_come_by_their_code_points_in_pages_and_by_prefix(busy: Any) -> None:
    assert names(busy) == ["Pay", "pay", "pay-eu", "支付"]
    assert names(busy, limit=2) == ["Pay", "pay"]
    assert names(busy, after="pay") == ["pay-eu", "支付"]
    assert names(busy, prefix="pay") == ["pay", "pay-eu"]
    assert names(busy, prefix="%") == []


def test_entries_come_the_newest_first_with_what_was_left(busy: Any) -> None:
    ledger = busy.ledger()
    for number in range(2, 5):
        ledger.apply([busy.end(f"pay-{number}", number, "pay")])
    administration.give(busy.engine, busy.plans, "pay", Kind.GRANT, 50, "g1", "sorry", NOW)
    subscription = administration.show(busy.engine, busy.plans, "pay", NOW).id

    first = browse.entries(busy.engine, subscription, before=None, limit=3)
    rest = browse.entries(busy.engine, subscription, before=first[-1].id, limit=10)

    told = [(each.line.kind, each.line.tokens, each.line.balance) for each in (*first, *rest)]
    assert told == [
        (Kind.GRANT, 50, 141),
        (Kind.CHARGE, -4, 91),
        (Kind.CHARGE, -3, 95),
        (Kind.CHARGE, -2, 98),
        (Kind.CHARGE, -900, 100),
        (Kind.OPENING, 1000, 1000),
    ]
    assert (first[0].line.note, first[1].line.exchange) == ("sorry", "pay-4")
    assert first[1].line.outcome == "completed"
    with busy.engine.connect() as connection:
        statement = list(administration.statement(connection, subscription))
    assert [each.line for each in (*first, *rest)] == statement[::-1]


def test_campaigns_are_told_with_what_they_did_and_whom_they_would_change(busy: Any) -> None:
    rule = Rule.of(0.25, 0.25)

    rows = campaign.rows(busy.engine, rule, NOW, limit=2)

    assert sorted(campaign.rows(busy.engine, rule, NOW, 9), key=lambda row: row.tenant) == [
        Affected("Pay", "free", 1000, 100, "reset", 100),
        Affected("pay", "free", 1000, 900, "bonus", 250),
        Affected("支付", "free", 1000, 300, "bonus", 250),
    ]
    assert len(rows) == 2
    assert browse.begun(busy.engine, limit=5) == []

    list(campaign.apply(busy.engine, "one", rule, NOW))
    list(campaign.apply(busy.engine, "two", Rule.of(0.0, 1.0), NOW + 1))

    told = [
        (row["id"], row["resets"], row["bonuses"]) for row in browse.begun(busy.engine, limit=5)
    ]
    assert told[1] == ("one", 1, 2)
    assert [each[0] for each in told] == ["two", "one"]
    assert [row["id"] for row in browse.begun(busy.engine, limit=1, ident="one")] == ["one"]
    assert browse.begun(busy.engine, limit=1, ident="three") == []
