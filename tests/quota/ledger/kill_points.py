"""Kills an outbox at every point where it can die, starts it again, and looks at the books.

A point is every resumption after an ``await`` of the outbox's tasks and every statement and commit in
either database. One run without a kill lists them; then each is killed at, in a process of its own,
at each of its occurrences, or the first of them. Afterwards an outbox on the same file must bring the books to what
a plain model says. Run as ``python kill_points.py DATABASE_URL FOLDER OCCURRENCES``; prints one JSON object.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Generator, Mapping
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import sqlalchemy as sa

from extproc.core.outcomes import Outcome
from extproc.quota import campaign
from extproc.quota import outbox as outbox_module
from extproc.quota.database import open_database
from extproc.quota.journal import Journal
from extproc.quota.ledger import Ledger
from extproc.quota.outbox import Outbox
from extproc.quota.periods import PeriodKind
from extproc.quota.plans import Plans, QuotaPlan
from extproc.quota.ports import Hold, Movement, Settlement

JUNE = 1_781_000_000.0
JULY = 1_782_864_000.0  # 2026-07-01T00:00Z
PLAN = QuotaPlan("free", 1000, PeriodKind.MONTH, ZoneInfo("UTC"))
PLANS = Plans({"free": PLAN}, {}, PLAN, frozenset())


def hold(ident: str, at: float = JULY) -> Hold:
    return Hold(ident, "pay", "free", 100, at)


def end(
    ident: str,
    tokens: int,
    outcome: Outcome = Outcome.COMPLETED,
    at: float = JULY,
    tenant: str = "pay",
) -> Settlement:
    return Settlement(ident, tenant, "free", outcome, tokens, False, at)


# The life before, in June: one call settled, one left running in the ledger, two records still in
# the file. The life that is killed begins in July, so it has a period to renew as well.
Step = list[Hold | Settlement]
BEFORE: tuple[Step, Step] = (
    [hold("june-done", JUNE), end("june-done", 1, at=JUNE), hold("june-running", JUNE)],
    [hold("june-late", JUNE), end("june-late", 2, at=JUNE)],
)
STEPS: tuple[Step, ...] = (
    [hold("a"), hold("b"), hold("c")],
    [end("a", 10), end("b", 0, Outcome.TIMEOUT), end("alone", 20), end("much", 900, tenant="much")],
    [hold("d"), end("d", 40), end("c", 0, Outcome.ENGINE_REJECTED), hold("running")],
)
TOKENS = {"june-done": 1, "june-late": 2, "a": 10, "alone": 20, "d": 40, "much": 900}


class Listener:
    """Hears what remains, and forgets it."""

    def opened(self, remaining: Mapping[str, int]) -> None:
        pass

    def moved(self, movement: Movement) -> None:
        pass


class SeenLedger(Ledger):
    """Tells when all that a start and a round of the outbox do has been done."""

    swept = False

    def sweep(self) -> None:
        super().sweep()
        self.swept = True


class Points:
    """Counts the points by name, and dies at one of them."""

    def __init__(self, victim: tuple[str, int] | None) -> None:
        self.seen: Counter[str] = Counter()
        self._victim = victim

    def __call__(self, name: str) -> None:
        self.seen[name] += 1
        if self._victim == (name, self.seen[name]):
            os.kill(os.getpid(), signal.SIGKILL)


class Watched(Coroutine[Any, Any, Any]):
    """A coroutine in which every resumption is a point, named by where it waited."""

    def __init__(self, inner: Coroutine[Any, Any, Any], point: Callable[[str], None]) -> None:
        self._inner = inner
        self._point = point

    def send(self, value: Any) -> Any:
        self._point(_place(self._inner))
        return self._inner.send(value)

    def throw(self, *error: Any) -> Any:
        self._point(f"{_place(self._inner)} cancelled")
        return self._inner.throw(*error)

    def close(self) -> None:
        self._inner.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        raise NotImplementedError


class WatchedJournal(Journal):
    """A journal in which every statement is a point."""

    def __init__(self, path: Path, point: Callable[[str], None]) -> None:
        super().__init__(path)
        self._point = point

    def open(self) -> None:
        super().open()
        self._file.set_trace_callback(
            lambda statement: self._point(f"journal {statement.split('(')[0][:60]}")
        )


def _place(coroutine: Any) -> str:
    """Name the innermost place in the outbox where a coroutine waits."""
    place = "start"
    while coroutine is not None and (frame := getattr(coroutine, "cr_frame", None)) is not None:
        if frame.f_code.co_filename == outbox_module.__file__:
            place = f"{frame.f_code.co_name}:{frame.f_lineno}"
        coroutine = coroutine.cr_await
    return f"await {place}"


def watch(engine: sa.Engine, point: Callable[[str], None]) -> None:
    """Make every statement and commit in the ledger a point: what is on the disk is then as before it.

    As after it, it is at the next point.
    """

    @sa.event.listens_for(engine, "before_cursor_execute")
    def _statement(*args: Any) -> None:
        point("ledger " + " ".join(args[2].split())[:80])

    @sa.event.listens_for(engine, "commit")
    def _commit(_connection: Any) -> None:
        point("ledger commit")


async def live(
    home: Path,
    url: str,
    now: float,
    steps: tuple[Step, ...] = (),
    point: Callable[[str], None] = lambda _: None,
    acks: int = 2,
) -> None:
    """Be a process: start, take records over, tell what is stored, stop."""
    asyncio.get_running_loop().set_task_factory(
        lambda loop, coroutine, **more: asyncio.Task(
            Watched(coroutine, point) if "Outbox." in coroutine.__qualname__ else coroutine,
            loop=loop, **more,
        )
    )  # fmt: skip
    journal = WatchedJournal(home / "outbox.db", point)
    engine = open_database(url)
    watch(engine, point)
    ledger = SeenLedger(engine, PLANS, lambda: now)
    outbox = Outbox(journal, ledger, lambda: now)
    await asyncio.create_task(outbox.open())
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(outbox.run(Listener()))
        for step in steps:
            for record in step:
                outbox.put(record)
            while outbox._buffer:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            stored = [f"{each.id}\n" for each in step if isinstance(each, Settlement)]
            os.write(acks, "".join(stored).encode())
            await asyncio.sleep(0.002)
        while not ledger.swept:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        await outbox.drain(60)
        running.cancel()
    if now == JULY:  # an operator makes up for a bad day; killed, he does so again
        for _ in campaign.apply(engine, "618", campaign.Rule.of(0.25, 0.25), round(1000 * now)):
            pass
    engine.dispose()


def in_child(work: Callable[[], None]) -> int:
    """Run in a fork and return its exit status: 0, or minus the signal that ended it."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def expected(home: Path, engine: sa.Engine) -> dict[str, int]:
    """Return what must be charged in the end: what the ledger has, and what the file still holds."""
    with engine.connect() as connection:
        charges = sa.text("SELECT key, used FROM transactions WHERE kind = 'charge'")
        charged = {key.removeprefix("call:"): used for key, used in connection.execute(charges)}
        states = sa.text("SELECT id FROM holds WHERE state <> 'pending'")
        over = set(connection.scalars(states))
    file = sqlite3.connect(home / "outbox.db")
    for kind, record in file.execute("SELECT kind, record FROM records ORDER BY number"):
        said = json.loads(record)
        if kind == "settlement" and said["tokens"] and said["id"] not in over:
            charged[said["id"]] = said["tokens"]
    file.close()
    return charged


def judge(home: Path, url: str, acked: set[str]) -> list[str]:
    """Start again, let it finish, and return what is wrong with the books."""
    engine = open_database(url)
    wanted = expected(home, engine)
    engine.dispose()
    code = in_child(lambda: asyncio.run(live(home, url, JULY)))
    problems = [] if code == 0 else [f"the next start ended with {code}"]
    with engine.connect() as connection:

        def rows(statement: str) -> list[Any]:
            return [tuple(row) for row in connection.execute(sa.text(statement))]

        charged = {
            key.removeprefix("call:"): used
            for key, used in rows("SELECT key, used FROM transactions WHERE kind = 'charge'")
        }
        if charged != wanted:
            problems.append(f"charged {charged}, the model says {wanted}")
        if lost := {key for key in acked if key in TOKENS and key not in charged}:
            problems.append(f"lost {lost}, which had been stored")
        if wrong := {key: used for key, used in charged.items() if TOKENS.get(key) != used}:
            problems.append(f"charged wrongly: {wrong}")
        if pending := rows("SELECT id FROM holds WHERE state = 'pending'"):
            problems.append(f"still held: {pending}")
        june = sum(used for key, used in wanted.items() if key.startswith("june"))
        july = sum(wanted.values()) - june - wanted.get("much", 0)
        # The campaign made the use of July 0 where it was little, and gave a quarter where not.
        model = [("pay", 0, june), ("pay", 1000, 0)]
        if "much" in wanted:
            model.insert(0, ("much", 350, 900))
        balances = rows("SELECT tenant, available, used FROM subscriptions ORDER BY 1, starts_at")
        if [each for each in balances if each != ("much", 1000, 0)] != model:
            problems.append(f"balances {balances}, the model says {model}")
        amends = rows("SELECT kind, available FROM transactions WHERE kind IN ('reset', 'bonus')")
        due = [("reset", july)] * (july > 0) + [("bonus", 250)] * ("much" in wanted)
        if sorted(amends) != sorted(due):
            problems.append(f"compensated {amends}, the model says {due}")
        if rows("SELECT 1 FROM entries GROUP BY transaction_id HAVING SUM(amount) <> 0"):
            problems.append("a transaction does not add up")
    engine.dispose()
    return problems


class Ground:
    """Fresh copies of the books as the life before has left them."""

    def __init__(self, url: str, folder: Path) -> None:
        self._url = sa.engine.make_url(url)
        self._folder = folder
        self._number = 0
        self._template = self._at("template")
        self._template[0].mkdir()
        if self._url.get_backend_name() == "postgresql":
            self._admin(f"CREATE DATABASE {self._url.database}_template")
        first, second = BEFORE

        def before() -> None:
            asyncio.run(
                live(*self._template, JUNE, (first,), acks=os.open(os.devnull, os.O_WRONLY))
            )
            journal = Journal(self._template[0] / "outbox.db")
            journal.open()
            journal.append(second, JUNE)
            journal.close()

        if in_child(before) != 0:
            raise RuntimeError("the life before has failed")

    def _at(self, name: str) -> tuple[Path, str]:
        home = self._folder / name
        if self._url.get_backend_name() == "sqlite":
            return home, f"sqlite:///{home / 'ledger.db'}"
        url = self._url.set(database=f"{self._url.database}_{name}")
        return home, url.render_as_string(hide_password=False)

    def fresh(self) -> tuple[Path, str]:
        self._number += 1
        home, url = self._at(f"n{self._number}")
        shutil.copytree(self._template[0], home)
        if self._url.get_backend_name() == "postgresql":
            name = self._url.database
            self._admin(f"CREATE DATABASE {name}_n{self._number} TEMPLATE {name}_template")
        return home, url

    def clear(self, home: Path) -> None:
        shutil.rmtree(home)

    def _admin(self, statement: str) -> None:
        engine = sa.create_engine(
            self._url.set(drivername="postgresql+psycopg"), isolation_level="AUTOCOMMIT"
        )
        with engine.connect() as connection:
            connection.execute(sa.text(statement))
        engine.dispose()


def run(ground: Ground, victim: tuple[str, int] | None) -> tuple[bool, list[str], Counter[str]]:
    """Live once, killed at ``victim``; return whether it was, what is wrong, and the points passed."""
    home, url = ground.fresh()
    reading, writing = os.pipe()
    points = home / "points.json"

    def work() -> None:
        count = Points(victim)
        asyncio.run(live(home, url, JULY, STEPS, count, writing))
        points.write_text(json.dumps(count.seen))

    code = in_child(work)
    os.close(writing)
    acked = set(os.read(reading, 1 << 16).decode().split())
    os.close(reading)
    problems = [] if code in (0, -signal.SIGKILL) else [f"the process ended with {code}"]
    problems += judge(home, url, acked)
    seen = Counter(json.loads(points.read_text())) if points.exists() else Counter()
    ground.clear(home)
    return code == -signal.SIGKILL, problems, seen


def main(url: str, folder: Path, occurrences: int) -> dict[str, Any]:
    began = time.monotonic()
    outbox_module.GATHER_SECONDS = outbox_module.LOOK_SECONDS = 0.001
    outbox_module.SWEEP_SECONDS = 0.0
    campaign.BATCH = 2
    ground = Ground(url, folder)
    _, problems, seen = run(ground, None)
    failures = {"without a kill": problems} if problems else {}
    killed, missed = 0, []
    for name, times in sorted(seen.items()):
        for occurrence in range(1, min(times, occurrences) + 1):
            for _ in range(5):  # whether a batch is one or two is a matter of timing
                hit, problems, _seen = run(ground, (name, occurrence))
                if problems:
                    failures[f"{name} #{occurrence}"] = problems
                if hit:
                    killed += 1
                    break
            else:
                missed.append(f"{name} #{occurrence}")
    return {
        "points": len(seen), "killed": killed, "missed": missed, "failures": failures,
        "names": sorted(seen), "seconds": round(time.monotonic() - began, 1),
    }  # fmt: skip


if __name__ == "__main__":
    json.dump(main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])), sys.stdout, indent=1)
