"""What quotas cost: ``python -m bench.quota`` prints how long a hold takes, and a campaign for everybody.

Rules this module keeps:

* A hold is timed alone, in process: `LocalMeter.take` for calls of many accounts, each with a plan.
* A campaign meets subscriptions that were written before the clock starts, a third of them used little,
  in a database of its own: SQLite in a folder that is thrown away, or an empty one by ``--database``.
  They are written as rows, without the entries that led to them: opening a million takes minutes.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import sqlalchemy as sa
import typer

from extproc.core.capacity import Pool, PoolLimits
from extproc.core.classes import Classification, Payer, ServiceClass
from extproc.core.controller import Candidate, Refusal
from extproc.core.limits import Plan, Rate
from extproc.core.metering import Taking
from extproc.core.outcomes import End, Outcome
from extproc.quota import campaign, schema
from extproc.quota.campaign import Rule
from extproc.quota.database import migrate, open_database, writing
from extproc.quota.meter import LocalMeter

HOLDS, ACCOUNTS = 20_000, 1_000
_AT_ONCE = 10_000
_DAY = 86_400_000
"""Milliseconds."""


def main(
    subscriptions: Annotated[int, typer.Option(min=0, help="of the campaign")] = 1_000_000,
    database: Annotated[
        str | None, typer.Option(help="URL of an empty one; default: SQLite")
    ] = None,
) -> None:
    """Measure holds and a campaign."""
    taken = sorted(holds())
    p50, p99 = statistics.median(taken) * 1e6, taken[round((len(taken) - 1) * 0.99)] * 1e6
    typer.echo(f"take, of {ACCOUNTS:,} accounts: p50 {p50:.1f} µs, p99 {p99:.1f} µs")
    if subscriptions:
        with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder:
            seconds = compensated(
                database or f"sqlite:///{Path(folder) / 'ledger.db'}", subscriptions
            )
        typer.echo(f"campaign for {subscriptions:,} subscriptions: {seconds:.1f} s")


def holds() -> list[float]:
    """Return the seconds that each hold took; each is settled before the next."""
    plan = Plan("free", Rate(1_000_000), Rate(1_000_000_000), 1_000_000_000)
    service_class = ServiceClass("P1", 0)
    pool = Pool("m", PoolLimits(100, stale_after=1.0, unknown_after=30.0), (service_class,))
    meter, taken = LocalMeter(None, time.time), []
    for number in range(HOLDS):
        account = f"tenant-{number % ACCOUNTS}"
        who = Classification(
            account, "", service_class, 90, None, (), None, None, payer=Payer(account, plan)
        )
        call = Candidate(f"x{number}", who, 10, body_bytes=100, max_output=90)
        now = time.monotonic()
        began = time.perf_counter()
        answer = meter.take(call, pool, now, _answered)
        taken.append(time.perf_counter() - began)
        if answer is not Taking.DONE:
            raise RuntimeError(f"a call that can pay was refused: {answer}")
        meter.settle(call.id, End(Outcome.COMPLETED, 10, 30), 0.0, now)
    return taken


def compensated(url: str, subscriptions: int) -> float:
    """Return the seconds that a campaign takes for so many subscriptions; a third used little."""
    engine, now = open_database(url), time.time()
    try:
        migrate(engine)
        with writing(engine) as connection:
            for rows in _used(subscriptions, round(1000 * now)):
                connection.execute(sa.insert(schema.subscriptions), rows)
        began = time.perf_counter()
        *_, done = campaign.apply(engine, "bench", Rule.of(0.25, 0.25), round(1000 * now))
        taken = time.perf_counter() - began
    finally:
        engine.dispose()
    if done.resets + done.bonuses + done.untouched != subscriptions:
        raise RuntimeError(f"the campaign has met other subscriptions: {done}")
    return taken


def _used(subscriptions: int, now: int) -> Iterator[list[dict[str, object]]]:
    for first in range(0, subscriptions, _AT_ONCE):
        rows: list[dict[str, object]] = []
        for number in range(first, min(first + _AT_ONCE, subscriptions)):
            used = 600 if number % 3 else 100
            rows.append(
                {
                    "tenant": f"tenant-{number}",
                    "plan": "free",
                    "quota": 1000,
                    "starts_at": now - _DAY,
                    "ends_at": now + _DAY,
                    "issued": -1000,
                    "available": 1000 - used,
                    "used": used,
                }
            )
        yield rows


def _answered(_refusal: Refusal | None) -> None:
    raise RuntimeError("a local meter answers at once")


if __name__ == "__main__":
    typer.run(main)
