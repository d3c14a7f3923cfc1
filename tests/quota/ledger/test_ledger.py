"""The ledger, the same on SQLite and PostgreSQL: charged once or not at all, balanced, rebuildable."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from extproc.core.outcomes import Outcome
from extproc.quota import booking, database
from extproc.quota.database import REVISION, migrate, open_database, writing
from extproc.quota.errors import LedgerUnavailableError
from extproc.quota.ledger import ABANDONED_SECONDS, KEEP_HOLDS_SECONDS, Ledger, Started
from extproc.quota.schema import Kind, metadata


def test_what_is_completed_is_charged_and_what_is_not_is_free(books: Any) -> None:
    ledger = books.ledger()
    ledger.apply([books.hold("a"), books.hold("b"), books.hold("c")])
    assert books.holds() == {"a": "pending", "b": "pending", "c": "pending"}
    assert books.balances() == {"pay": (1000, 0)}

    ledger.apply([books.end("a", 70), books.end("b", 0, outcome=Outcome.TIMEOUT)])
    assert books.holds() == {"a": "captured", "b": "released", "c": "pending"}
    assert books.balances() == {"pay": (930, 70)}
    books.check()


def test_a_settlement_needs_no_hold_before_it(books: Any) -> None:
    books.ledger().apply([books.end("a", 70), books.end("b", 0, outcome=Outcome.ENGINE_ERROR)])
    assert books.holds() == {"a": "captured", "b": "released"}
    assert books.balances() == {"pay": (930, 70)}


def test_the_same_records_again_change_nothing(books: Any) -> None:
    ledger = books.ledger()
    records = [books.hold("a"), books.hold("b"), books.end("a", 70), books.end("b", 0)]
    for _ in range(2):
        ledger.apply(records)
        ledger.apply([*records, *records])
    ledger.apply([books.end("a", 900), books.end("b", 900)])
    assert books.balances() == {"pay": (930, 70)}
    assert books.rows("SELECT count(*) FROM transactions WHERE kind = 'charge'") == [(1,)]


def test_a_charge_is_refused_for_ever_also_when_its_hold_is_forgotten(books: Any) -> None:
    ledger = books.ledger()
    ledger.apply([books.hold("a"), books.end("a", 70)])
    books.now += KEEP_HOLDS_SECONDS + 1
    ledger.sweep()
    assert books.holds() == {}
    ledger.apply([books.hold("a"), books.end("a", 70)])
    assert books.balances() == {"pay": (930, 70)}
    books.check()


def test_nor_does_it_come_again_when_its_period_is_over(books: Any) -> None:
    ledger = books.ledger()
    records = [books.hold("a"), books.end("a", 70)]
    ledger.apply(records)
    books.now = 1_782_864_000.0  # July
    ledger.roll()
    ledger.sweep()
    ledger.apply(records)
    assert books.rows("SELECT -issued, available, used FROM subscriptions WHERE closed") == [
        (70, 0, 70)
    ]
    books.check()


def test_an_overdraft_is_written_as_it_is(books: Any) -> None:
    books.ledger().apply([books.end("a", 1500)])
    assert books.balances() == {"pay": (-500, 1500)}


def test_a_start_releases_what_the_process_before_held_and_nothing_else(books: Any) -> None:
    one, two = books.ledger("one"), books.ledger("two")
    one.apply([books.hold("mine"), books.hold("done"), books.end("done", 5)])
    two.apply([books.hold("other")])
    one.apply([Started(books.now), books.hold("new"), books.end("mine", 50)])
    assert books.holds() == {
        "mine": "released", "done": "captured", "other": "pending", "new": "pending",
    }  # fmt: skip
    assert books.balances() == {"pay": (995, 5)}


def test_records_keep_their_order_around_a_start(books: Any) -> None:
    ledger = books.ledger()
    ledger.apply([books.hold("a"), Started(books.now), books.end("a", 50), books.hold("b")])
    assert books.holds() == {"a": "released", "b": "pending"}


def test_what_a_dead_tidegate_held_is_released_by_another(books: Any) -> None:
    dead, other = books.ledger("dead"), books.ledger("other")
    dead.apply([books.hold("a")])
    books.now += ABANDONED_SECONDS - 1
    other.sweep()
    assert books.holds() == {"a": "pending"}
    books.now += 2
    other.sweep()
    assert books.holds() == {"a": "released"}


def test_two_processes_that_settle_the_same_hold_charge_it_once(books: Any) -> None:
    one, two = books.ledger("one"), books.ledger("two")
    one.apply([books.hold(f"x{number}") for number in range(40)])
    start = threading.Barrier(2)

    def settle(ledger: Ledger) -> None:
        start.wait()
        for number in range(40):
            ledger.apply([books.end(f"x{number}", 10)])

    threads = [threading.Thread(target=settle, args=(ledger,)) for ledger in (one, two)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert books.balances() == {"pay": (600, 400)}
    books.check()


# What others move.


def test_what_remains_is_told_once_and_then_what_others_move(books: Any) -> None:
    one, two = books.ledger("one"), books.ledger("two")
    one.apply([books.end("a", 100), books.end("b", 30, tenant="service")])
    remaining, last = one.remaining()
    assert remaining == {"pay": 900, "service": 970}
    assert one.movements(last, 10) == ([], last)

    one.apply([books.end("c", 1)])  # its own settlements it knows
    two.apply([books.end("d", 7), books.end("e", 5, tenant="newcomer")])
    moved, last = one.movements(last, 10)
    assert [(each.id, each.tenant, each.tokens, each.settled) for each in moved] == [
        ("call:d", "pay", -7, True),
        ("call:e", "newcomer", -5, True),
    ]
    assert one.movements(last, 10) == ([], last)


def test_movements_come_in_pages(books: Any) -> None:
    one, two = books.ledger("one"), books.ledger("two")
    two.apply([books.end(f"x{number}", 1) for number in range(5)])
    seen, last = [], 0
    while True:
        moved, last = one.movements(last, 2)
        if not moved:
            break
        seen += [each.id for each in moved]
    assert seen == [f"call:x{number}" for number in range(5)]


# What the database itself holds to.


def test_transactions_cannot_be_changed_or_removed(books: Any) -> None:
    books.ledger().apply([books.end("a", 70)])
    for statement in (
        "UPDATE transactions SET used = 0, available = 0",
        "DELETE FROM transactions",
    ):
        with (
            pytest.raises(sa.exc.DBAPIError, match="only ever added"),
            writing(books.engine) as connection,
        ):
            connection.execute(sa.text(statement))


def test_a_transaction_that_does_not_add_up_is_refused(books: Any) -> None:
    books.ledger().apply([books.end("a", 70)])
    posting = booking.Posting("odd", 1, Kind.ADJUST, 0, available=5)
    with pytest.raises(sa.exc.IntegrityError), writing(books.engine) as connection:
        booking.book(connection, [posting])
    books.check()


def test_balances_can_be_made_anew_from_the_entries(books: Any) -> None:
    books.ledger().apply([books.end("a", 70), books.end("b", 30, tenant="service")])
    with writing(books.engine) as connection:
        assert booking.rebuild(connection) == 0
        connection.execute(sa.text("UPDATE subscriptions SET available = 1, used = 2, issued = -3"))
        assert booking.rebuild(connection) == 2
    assert books.balances() == {"pay": (930, 70), "service": (970, 30)}


# The schema.


def test_the_steps_make_the_tables_that_the_code_speaks_of(books: Any) -> None:
    with books.engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []


def test_the_last_step_is_the_one_that_the_code_expects(books: Any) -> None:
    assert books.rows("SELECT version_num FROM alembic_version") == [(REVISION,)]


def test_several_may_make_the_tables_at_once(database_url: str) -> None:
    problems: list[BaseException] = []
    start = threading.Barrier(4)

    def make() -> None:
        engine = open_database(database_url)
        start.wait()
        try:
            migrate(engine)
        except BaseException as error:
            problems.append(error)
        engine.dispose()

    threads = [threading.Thread(target=make) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert problems == []


def test_a_new_file_that_another_just_writes_to_is_waited_for(tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "ledger.db", isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")  # SQLite would refuse at once to log ahead, and not wait
    end = threading.Timer(0.2, other.rollback)
    end.start()
    engine = open_database(f"sqlite:///{tmp_path}/ledger.db")
    migrate(engine)
    with engine.connect() as connection:
        assert connection.scalar(sa.text("SELECT version_num FROM alembic_version")) == REVISION
        assert connection.scalar(sa.text("PRAGMA journal_mode")) == "wal"
    engine.dispose()
    end.join()
    other.close()


def test_a_new_file_that_another_never_leaves_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "LOCK_SECONDS", 0.1)
    other = sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    engine = open_database(f"sqlite:///{tmp_path}/ledger.db")
    with pytest.raises(sa.exc.OperationalError, match="locked"):
        migrate(engine)
    engine.dispose()
    other.close()


def test_the_tables_of_a_newer_tidegate_are_left_alone(books: Any) -> None:
    with writing(books.engine) as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(LedgerUnavailableError, match="revision 9999"):
        migrate(books.engine)


@pytest.mark.parametrize(("url", "problem"), [("", "state.database"), ("sqlite", "state.database")])
def test_a_database_that_cannot_be_named(url: str, problem: str) -> None:
    with pytest.raises(LedgerUnavailableError, match=problem):
        open_database(url)


def test_an_error_does_not_tell_who_or_what(books: Any, make_plans: Callable[..., Any]) -> None:
    ledger = books.ledger()
    with pytest.raises(Exception) as caught:
        ledger.apply([books.end("a", 1 << 70, tenant="secret-tenant")])
    assert "secret-tenant" not in str(caught.value)
