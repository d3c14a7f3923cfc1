"""The outbox: nothing waits for the ledger, nothing is lost, nothing arrives twice."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from extproc.core.outcomes import Outcome
from extproc.quota import outbox as outbox_module
from extproc.quota.errors import JournalError
from extproc.quota.journal import Journal
from extproc.quota.ledger import Ledger, Started
from extproc.quota.outbox import Outbox
from extproc.quota.ports import Movement


class Listener:
    """Keeps what it hears."""

    def __init__(self) -> None:
        self.remaining: Mapping[str, int] | None = None
        self.movements: list[tuple[str, int]] = []

    def opened(self, remaining: Mapping[str, int]) -> None:
        assert self.remaining is None
        self.remaining = remaining

    def moved(self, movement: Movement) -> None:
        assert self.remaining is not None
        self.movements.append((movement.tenant, movement.tokens))


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_module, "GATHER_SECONDS", 0.001)
    monkeypatch.setattr(outbox_module, "LOOK_SECONDS", 0.005)
    monkeypatch.setattr(outbox_module, "RETRY_SECONDS", (0.001, 0.01))
    monkeypatch.setattr(outbox_module, "CLOSE_SECONDS", 0.05)


@asynccontextmanager
async def running(
    books: Any, folder: Path, listener: Listener | None = None, ledger: Any = None
) -> AsyncIterator[Outbox]:
    if ledger is None:
        ledger = Ledger(books.engine, books.plans, lambda: books.now)
    outbox = Outbox(Journal(folder / "outbox.db"), ledger, lambda: books.now)
    await outbox.open()
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(outbox.run(listener or Listener()))
        yield outbox
        task.cancel()


def opened(path: Path, **options: int) -> Journal:
    journal = Journal(path, **options)
    journal.open()
    return journal


async def until(wanted: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not wanted():  # noqa: ASYNC110 (what is waited for is no event)
            await asyncio.sleep(0.002)


async def test_what_is_put_arrives(books: Any, tmp_path: Path) -> None:
    async with running(books, tmp_path) as outbox:
        outbox.put(books.hold("a"))
        outbox.put(books.end("a", 70))
        outbox.put(books.hold("b"))
        await outbox.drain(20)
        assert (outbox.backlog, outbox.lag) == (0, 0.0)
    assert books.balances() == {"pay": (930, 70)}
    assert books.holds() == {"a": "captured", "b": "pending"}


async def test_the_next_process_takes_over_what_was_stored_and_releases_what_was_held(
    books: Any, tmp_path: Path
) -> None:
    journal = opened(tmp_path / "outbox.db")
    books.ledger(journal.owner).apply([books.hold("running")])
    journal.append([books.hold("a"), books.end("a", 70)], books.now)
    journal.close()
    listener = Listener()
    async with running(books, tmp_path, listener) as outbox:
        outbox.put(books.end("new", 1))
        await until(lambda: listener.remaining is not None)
        await outbox.drain(20)
    assert listener.remaining == {"pay": 930}  # what was put since counts on top
    assert books.balances() == {"pay": (929, 71)}
    assert books.holds() == {"running": "released", "a": "captured", "new": "captured"}


async def test_what_others_move_is_told(books: Any, tmp_path: Path) -> None:
    listener = Listener()
    async with running(books, tmp_path, listener):
        await until(lambda: listener.remaining is not None)
        books.ledger("other").apply([books.end("a", 5)])
        await until(lambda: listener.movements == [("pay", -5)])


async def test_a_period_is_renewed_at_its_end(books: Any, tmp_path: Path) -> None:
    books.ledger("other").apply([books.end("a", 5)])
    listener = Listener()
    async with running(books, tmp_path, listener):
        await until(lambda: listener.remaining == {"pay": 995})
        books.now = 1_782_864_000.0  # 2026-07-01T00:00Z
        await until(lambda: listener.movements == [("pay", -995), ("pay", 1000)])


async def test_other_plans_are_followed_while_it_runs(
    books: Any, make_plans: Any, tmp_path: Path
) -> None:
    """At the start of a month all of the larger quota is added."""
    books.ledger("other").apply([books.end("a", 5)])
    listener = Listener()
    async with running(books, tmp_path, listener) as outbox:
        await until(lambda: listener.remaining == {"pay": 995})
        outbox.follow(make_plans(pay=make_plans().plans["business"]))
        await until(lambda: listener.movements == [("pay", 49_000)])
    assert books.balances() == {"pay": (49_995, 5)}
    books.check()


class Flaky:
    """A ledger whose database is gone while ``down`` is set, or hangs while ``hung`` is."""

    def __init__(self, ledger: Any) -> None:
        self._ledger = ledger
        self.down = False
        self.hung = threading.Event()
        self.hung.set()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._ledger, name)

        def call(*args: Any) -> Any:
            assert self.hung.wait(20)
            if self.down and name != "close":
                raise sa.exc.OperationalError("SELECT", {}, Exception("gone"))
            return method(*args)

        return call


async def test_while_the_database_is_down_records_wait_in_the_file(
    books: Any, tmp_path: Path
) -> None:
    ledger = Flaky(books.ledger("down"))
    async with running(books, tmp_path, ledger=ledger) as outbox:
        await until(lambda: outbox.up and outbox.backlog == 0)
        ledger.down = True
        for number in range(3000):
            outbox.put(books.end(f"x{number}", 1, tenant=f"t{number % 3}"))
        await until(lambda: not outbox._buffer and not outbox.up)
        assert outbox.backlog == 3000
        books.now += 60
        assert outbox.lag == 60.0
        ledger.down = False
        await outbox.drain(20)
        assert (outbox.backlog, outbox.lag, outbox.up) == (0, 0.0, True)
    assert books.balances() == {f"t{number}": (0, 1000) for number in range(3)}


async def test_a_database_that_hangs_holds_up_nothing_but_the_ledger(
    books: Any, tmp_path: Path
) -> None:
    ledger = Flaky(books.ledger("hung"))
    ledger.hung.clear()
    async with running(books, tmp_path, ledger=ledger) as outbox:
        outbox.put(books.end("a", 1))
        await until(lambda: not outbox._buffer)
        await outbox.drain(0.01)  # gives up in time, and the file keeps what there is
        assert outbox.backlog == 2
        ledger.hung.set()
        await outbox.drain(20)
    assert books.balances() == {"pay": (999, 1)}


async def test_the_process_ends_though_the_database_hangs(books: Any, tmp_path: Path) -> None:
    ledger = Flaky(books.ledger("hung"))
    ledger.hung.clear()
    async with running(books, tmp_path, ledger=ledger) as outbox:
        outbox.put(books.end("a", 1))
        await until(lambda: not outbox._buffer)
    ledger.hung.set()
    outbox._in_ledger._thread.join(20)
    journal = opened(tmp_path / "outbox.db")
    assert [type(each.record).__name__ for each in journal.read(9)] == ["Started", "Settlement"]
    journal.close()


WHY = {"sqlite": "OverflowError", "postgresql": "DataError"}


async def test_a_record_that_the_ledger_refuses_is_put_aside(books: Any, tmp_path: Path) -> None:
    async with running(books, tmp_path) as outbox:
        outbox.put(books.end("a", 1))
        outbox.put(books.end("odd", (1 << 63) + 1))
        outbox.put(books.end("b", 2))
        await outbox.drain(20)
        assert outbox.refused == 1
    assert books.balances() == {"pay": (997, 3)}
    file = sqlite3.connect(tmp_path / "outbox.db")
    assert file.execute("SELECT number, why FROM refused").fetchall() == [
        (3, WHY[books.engine.dialect.name])
    ]
    file.close()


async def test_memory_is_bounded_where_the_disk_fails(
    books: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox_module, "BUFFER", 10)
    async with running(books, tmp_path) as outbox:
        await until(lambda: outbox.up and outbox.backlog == 0)

        def full(*_: object) -> int:
            raise sqlite3.OperationalError("database or disk is full")

        with monkeypatch.context() as patch:
            patch.setattr(outbox._journal, "append", full)
            for number in range(15):
                outbox.put(books.end(f"x{number}", 1))
            await asyncio.sleep(0.01)
            assert (outbox.backlog, outbox.dropped) == (10, 5)
        await outbox.drain(20)
    assert books.balances() == {"pay": (990, 10)}


# The file.


def test_a_file_belongs_to_one_process(tmp_path: Path) -> None:
    journal = opened(tmp_path / "outbox.db")
    with pytest.raises(JournalError, match="each Tidegate needs one of its own"):
        opened(tmp_path / "outbox.db")
    journal.close()
    again = opened(tmp_path / "outbox.db")
    assert again.owner == journal.owner
    again.close()


@pytest.mark.parametrize("name", ["no-folder/outbox.db", "noise"])
def test_a_file_that_cannot_be_used(tmp_path: Path, name: str) -> None:
    (tmp_path / "noise").write_bytes(b"x" * 4096)
    with pytest.raises(JournalError, match=r"state\.outbox"):
        opened(tmp_path / name)


def test_a_file_grows_to_its_bound_and_can_be_used_again_after_that(tmp_path: Path) -> None:
    journal = opened(tmp_path / "outbox.db", bound=1 << 17)
    assert 0.0 < journal.used < 0.3
    hundred, stored = [Started(float(number)) for number in range(100)], 0
    with suppress(sqlite3.OperationalError):
        while stored < 1 << 20:
            journal.append(hundred, 0.0)
            stored += 100
    assert journal.count == stored
    assert 1000 <= stored < 1 << 20
    with pytest.raises(sqlite3.OperationalError, match="full"):
        journal.append(hundred, 0.0)
    assert (tmp_path / "outbox.db").stat().st_size <= 1 << 17
    assert 0.9 < (full := journal.used) <= 1.0
    journal.forget(journal.read(500)[-1].number)
    assert journal.used < full
    journal.append([Started(1.0)], 0.0)
    assert journal.count == stored - 500 + 1
    journal.close()


def test_records_come_back_as_they_were(books: Any, tmp_path: Path) -> None:
    journal = opened(tmp_path / "outbox.db")
    records = [books.hold("a"), books.end("甲", 7, outcome=Outcome.CLIENT_GONE), Started(2.5)]
    assert journal.append(records, 9.0) == 3
    assert [(each.number, each.at, each.record) for each in journal.read(9)] == [
        (number, 9.0, record) for number, record in enumerate(records, start=1)
    ]
    journal.close()
