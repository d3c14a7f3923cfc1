"""Compensation: the rule to the token, once per campaign, for whoever is subscribed at its moment."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from extproc.core.outcomes import Outcome
from extproc.quota import campaign
from extproc.quota.campaign import CampaignError, Progress, Rule
from extproc.quota.database import writing

QUARTER = Rule.of(0.25, 0.25)


def spend(books: Any, **used: int) -> Any:
    """Open a subscription with 1000 tokens for each tenant, and let it use some."""
    ledger = books.ledger()
    ledger.apply(
        [books.end(f"{tenant}-1", tokens, tenant=tenant) for tenant, tokens in used.items()]
    )
    return ledger


def applied(books: Any, ident: str = "618", rule: Rule = QUARTER) -> Progress:
    *_, last = campaign.apply(books.engine, ident, rule, round(1000 * books.now))
    return last


def test_who_used_less_than_a_quarter_starts_anew_and_others_get_a_quarter_more(books: Any) -> None:
    spend(books, little=249, quarter=250, much=900, overdrawn=1400)
    preview = campaign.preview(books.engine, QUARTER, round(1000 * books.now))
    before = books.balances()
    done = applied(books)
    assert before == {
        "little": (751, 249), "quarter": (750, 250), "much": (100, 900), "overdrawn": (-400, 1400),
    }  # fmt: skip
    assert books.balances() == {
        "little": (1000, 0), "quarter": (1000, 250), "much": (350, 900), "overdrawn": (-150, 1400),
    }  # fmt: skip
    sums = (done.resets, done.reset_tokens, done.bonuses, done.bonus_tokens, done.untouched)
    assert sums == (1, 249, 3, 750, 0)
    assert sums == (
        preview.resets, preview.reset_tokens, preview.bonuses, preview.bonus_tokens, preview.untouched,
    )  # fmt: skip
    books.check()
    notes = "SELECT DISTINCT note FROM transactions WHERE kind IN ('reset', 'bonus')"
    assert books.rows(notes) == [("campaign 618",)]


def test_a_campaign_happens_once_and_another_one_again(books: Any) -> None:
    spend(books, much=900)
    assert applied(books).bonuses == applied(books).bonuses == 1
    assert books.balances() == {"much": (350, 900)}
    # The total is what was given in all: 1250, of which a quarter is 313, rounded up.
    applied(books, "818")
    assert books.balances() == {"much": (663, 900)}


def test_a_campaign_goes_on_with_the_rule_that_it_began_with(books: Any) -> None:
    spend(books, much=900)
    applied(books)
    with pytest.raises(CampaignError, match=r"--below 0.25 --bonus 0.25"):
        applied(books, rule=Rule.of(0.5, 0.25))


def test_a_preview_changes_nothing(books: Any) -> None:
    spend(books, much=900)
    campaign.preview(books.engine, QUARTER, round(1000 * books.now))
    assert books.balances() == {"much": (100, 900)}
    assert books.rows("SELECT count(*) FROM campaigns") == [(0,)]


def test_only_subscriptions_that_are_valid_at_the_moment_count(books: Any) -> None:
    ledger = spend(books, old=900)
    moment = books.now
    books.now = 1_782_864_000.0  # July: the subscription of June is over
    ledger.roll()
    ledger.apply([books.end("new", 900, tenant="new")])
    done = applied(books)
    assert (done.bonuses, done.untouched) == (1, 1)
    assert books.balances() == {"old": (1000, 0), "new": (350, 900)}
    # Looked at in June, and got to in July: what is over is left alone.
    done = [*campaign.apply(books.engine, "june", QUARTER, round(1000 * moment))][-1]
    assert (done.resets, done.bonuses, done.untouched) == (0, 0, 0)


def test_what_is_stopped_goes_on_where_it_was(books: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "BATCH", 3)
    spend(books, **{f"t{number}": 900 for number in range(8)})
    run = campaign.apply(books.engine, "618", QUARTER, round(1000 * books.now))
    seen = [each.done for each in itertools.islice(run, 2)]
    run.close()
    assert seen == [0, 3]
    # In between the others go on spending, and newcomers subscribe, who are not meant.
    books.ledger().apply([books.end("more", 50, tenant="t7"), books.end("new", 900, tenant="new")])
    books.now += 60
    run = campaign.apply(books.engine, "618", QUARTER, round(1000 * books.now))
    assert [(each.done, each.bonuses) for each in run] == [(3, 3), (6, 6), (8, 8)]
    assert books.balances() == {
        **{f"t{number}": (350, 900) for number in range(7)}, "t7": (300, 950), "new": (100, 900),
    }  # fmt: skip
    books.check()


def test_nobody_is_subscribed(books: Any) -> None:
    books.ledger()
    assert applied(books) == Progress(0, 0, 0, 0, 0, 0, 0)


def test_running_tidegates_hear_of_it(books: Any) -> None:
    ledger = spend(books, little=100, much=900)
    _, last = ledger.remaining()
    applied(books)
    moved, _ = ledger.movements(last, 10)
    assert [(each.tenant, each.tokens, each.settled) for each in moved] == [
        ("little", 100, False), ("much", 250, False),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("below", "bonus", "problem"),
    [(1.01, 0.25, "below"), (-0.1, 0.25, "below"), (0.25, 10.5, "bonus"), (0.25, 0.00001, "bonus")],
)
def test_shares_that_make_no_sense(below: float, bonus: float, problem: str) -> None:
    with pytest.raises(CampaignError, match=problem):
        Rule.of(below, bonus)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    below=st.integers(0, 10_000),
    bonus=st.integers(0, 100_000),
    accounts=st.lists(
        st.tuples(st.integers(0, 1 << 53), st.integers(0, 1 << 53)), min_size=1, max_size=5
    ),
)
def test_the_rule_is_exact_however_large_the_numbers(
    books: Any, below: int, bonus: int, accounts: list[tuple[int, int]]
) -> None:
    """Integers of any size, against Python's own."""
    opening = "INSERT INTO subscriptions (tenant, plan, quota, starts_at, ends_at, issued, available, used) VALUES ('{0}', 'p', {1}, {2}, {3}, -{1}, {1} - {4}, {4})"
    moment = books.rows("SELECT coalesce(max(ends_at), 0) + 1 FROM subscriptions")[0][0]
    with writing(books.engine) as connection:
        for number, (total, used) in enumerate(accounts):
            connection.exec_driver_sql(
                opening.format(f"{moment}-{number}", total, moment, moment + 9, used)
            )
    preview = campaign.preview(books.engine, Rule(below, bonus), moment)
    done = applied_at(books, f"c{moment}", Rule(below, bonus), moment)
    expected = [0, 0, 0, 0, 0]
    for total, used in accounts:
        more = -(-total * bonus // 10_000)
        if used * 10_000 < total * below:
            change = (1, used, 0, 0, 0) if used else (0, 0, 0, 0, 1)
        else:
            change = (0, 0, 1, more, 0) if more else (0, 0, 0, 0, 1)
        expected = [have + add for have, add in zip(expected, change, strict=True)]
    for got in (preview, done):
        sums = [got.resets, got.reset_tokens, got.bonuses, got.bonus_tokens, got.untouched]
        assert sums == expected


def applied_at(books: Any, ident: str, rule: Rule, moment: int) -> Progress:
    return [*campaign.apply(books.engine, ident, rule, moment)][-1]


def test_outcomes_that_are_free_stay_free(books: Any) -> None:
    books.ledger().apply([books.end("a", 0, outcome=Outcome.ENGINE_ERROR)])
    assert applied(books).untouched == 1
    assert books.balances() == {"pay": (1000, 0)}
