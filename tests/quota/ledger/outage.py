"""What callers notice of a database that hangs, and what the ledger says afterwards.

The whole: a real Envoy, Tidegate with a real PostgreSQL, two emulated engines, payments at a steady
rate. The database is frozen, connections and all; then it is let go on. Run as::

    python -m tests.quota.ledger.outage --seconds 60 --rate 100
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import httpx
import psutil
import sqlalchemy as sa
import yaml

from extproc.config import parse
from extproc.quota.database import open_database
from extproc.sim.loadgen.http_client import Client
from extproc.sim.loadgen.load import Kind, Load, Traffic, poisson
from extproc.stand.plan import EMULATED_MODEL, Plan, make_plan
from extproc.stand.up import running
from tests.quota.ledger.postgres_server import PostgresServer, running_postgres

BODY = {
    "model": EMULATED_MODEL, "max_tokens": 8, "ignore_eos": True,
    "messages": [{"role": "user", "content": "pay order 4711"}],
}  # fmt: skip


@dataclass(frozen=True)
class Phase:
    """What callers saw in one phase; milliseconds."""

    sent: int
    answered: int
    p50: float
    p99: float


@dataclass(frozen=True)
class Report:
    """What came of it.

    Attributes:
        before, during: the database there, and hanging.
        backlog: records in the file when the database was let go on.
        caught_up: seconds until the ledger had them all.
        memory, memory_after: of Tidegate, in MiB: before the outage, and at its end.
        charges, tokens: in the ledger, at the end.
        usage: tokens that one answer reported.
        pending: holds left.
    """

    before: Phase
    during: Phase
    backlog: int
    caught_up: float
    memory: float
    memory_after: float
    charges: int
    tokens: int
    usage: int
    pending: int


def plan_with(directory: Path, database: str) -> Plan:
    """Return the stand's plan with a ledger in this database."""
    plan = make_plan(directory, port=0, engines=())
    settings = yaml.safe_load(plan.text)
    settings["state"]["database"] = database
    text = yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)
    return replace(plan, text=text, config=parse(text, file=directory / "tidegate.yaml"))


async def measure(server: PostgresServer, directory: Path, seconds: float, rate: float) -> Report:
    """Run it: as long with the database as without."""
    database = server.new_database()
    plan = plan_with(directory, database)
    url = f"http://{plan.envoy}"
    async with running(plan) as children, httpx.AsyncClient(timeout=30) as http:
        (tidegate,) = (each for each in children if each.name == "tidegate")
        process = psutil.Process(tidegate.process.pid)
        headers = {"x-tenant-id": "pay"}
        reply = await http.post(f"{url}/v1/chat/completions", json=BODY, headers=headers)
        usage = reply.json()["usage"]["total_tokens"]
        await _until_empty(http, plan)
        before = await _load(url, seconds, rate)
        memory = process.memory_info().rss / (1 << 20)
        server.freeze()
        during = await _load(url, seconds, rate)
        memory_after = process.memory_info().rss / (1 << 20)
        backlog = await _backlog(http, plan)
        server.thaw()
        began = time.monotonic()
        await _until_empty(http, plan)
        caught_up = time.monotonic() - began
    engine = open_database(database)
    with engine.connect() as connection:
        charges, tokens = connection.execute(
            sa.text(
                "SELECT count(*), coalesce(sum(used), 0) FROM transactions WHERE kind = 'charge'"
            )
        ).one()
        pending = connection.scalar(sa.text("SELECT count(*) FROM holds WHERE state = 'pending'"))
    engine.dispose()
    return Report(
        before, during, backlog, round(caught_up, 2), round(memory, 1), round(memory_after, 1),
        charges, int(tokens), usage, pending or 0,
    )  # fmt: skip


async def _load(url: str, seconds: float, rate: float) -> Phase:
    rng = random.Random(7)
    body = json.dumps(BODY).encode()
    async with Client(url, clock=time.monotonic) as client:
        await client.connect(8)
        load = Load(client, [Traffic("pay", lambda _: body, (("x-tenant-id", "pay"),))], rng)
        await load.run(poisson(rate, seconds, rng), patience=30)
    tally = load.tallies["pay"]
    p50, p99 = tally.total[Kind.ENGINE].percentiles(50, 99)
    return Phase(tally.sent, tally.answers[Kind.ENGINE], round(1000 * p50, 1), round(1000 * p99, 1))


async def _backlog(http: httpx.AsyncClient, plan: Plan) -> int:
    page = (await http.get(plan.metrics_url)).text
    return int(float(page.partition("\ntidegate_outbox_records ")[2].partition("\n")[0]))


async def _until_empty(http: httpx.AsyncClient, plan: Plan) -> None:
    async with asyncio.timeout(120):
        await asyncio.sleep(1.0)  # Envoy's last records
        while await _backlog(http, plan) > 0:  # noqa: ASYNC110 (it is another process's)
            await asyncio.sleep(0.05)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, default=60)
    options.add_argument("--rate", type=float, default=100)
    chosen = options.parse_args()
    with ExitStack() as stack:
        home, stand = (
            Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=prefix)))
            for prefix in ("pg-", "tidegate-")
        )
        server = stack.enter_context(running_postgres(home))
        report = asyncio.run(measure(server, stand, chosen.seconds, chosen.rate))
    json.dump(asdict(report), sys.stdout, indent=1)
    sys.stdout.write("\n")
    answered = 1 + report.before.answered + report.during.answered
    return int(report.charges != answered or report.tokens != answered * report.usage)


if __name__ == "__main__":
    sys.exit(main())
