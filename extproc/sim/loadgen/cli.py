"""``tidegate load``: a mix of callers against a running gateway, and who was answered by whom."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table

from extproc.sim.loadgen.http_client import Client
from extproc.sim.loadgen.load import Kind, Load, Tally, Traffic, poisson
from extproc.sim.loadgen.precise_loop import precise_loop

RECENT = 500
"""How many of the last latencies the live table looks at."""
_REFRESH = 0.5
_CONNECTIONS = 8
_UNREACHABLE = 1
_WORDS = ("order", "refund", "parcel", "invoice", "address", "payment", "coupon", "delivery")


def load(
    url: Annotated[str, typer.Option(metavar="URL", help="the gateway, as Envoy listens")] = (
        "http://127.0.0.1:8080"
    ),
    rate: Annotated[
        float, typer.Option(metavar="RATE", min=0.01, help="requests per second, all together")
    ] = 20,
    mix: Annotated[
        str, typer.Option(metavar="TENANT=SHARE,…", help="who is calling, and how often")
    ] = "pay=20,service=30,marketing=50",
    duration: Annotated[float, typer.Option(metavar="SECONDS", min=0, help="how long")] = 30,
    model: Annotated[str, typer.Option(help="the model that is asked for")] = "qwen-72b-instruct",
    max_tokens: Annotated[int, typer.Option(min=1, help="longest answer that is asked for")] = 256,
    prompt_words: Annotated[int, typer.Option(min=1, help="length of a prompt")] = 200,
    no_stream: Annotated[
        bool, typer.Option("--no-stream", help="ask for whole answers, not for streams")
    ] = False,
    tenant_header: Annotated[str, typer.Option(help="the header that names the tenant")] = (
        "x-tenant-id"
    ),
    key: Annotated[
        list[str] | None,
        typer.Option(metavar="TENANT=KEY", help="send this bearer key, not the header"),
    ] = None,
    patience: Annotated[
        float,
        typer.Option(metavar="SECONDS", min=0, help="wait for answers after the last request"),
    ] = 30,
    seed: Annotated[int, typer.Option(help="same seed, same requests at the same times")] = 1,
) -> None:
    """Send a mix of callers to a running Tidegate and show who is answered by an engine.

    Requests leave on schedule, however slow the answers are (open loop).
    Latencies count from the time a request was due. Ctrl-C ends it early.
    """
    keys = _pairs(key or [], "--key")
    body = _chat(model, max_tokens, prompt_words, stream=not no_stream)
    traffics = [
        Traffic(
            name=tenant,
            body=body,
            headers=(
                ("authorization", f"Bearer {keys[tenant]}")
                if tenant in keys
                else (tenant_header, tenant),
            ),
            weight=share,
        )
        for tenant, share in parse_mix(mix).items()
    ]
    console = Console()
    try:
        with asyncio.Runner(loop_factory=precise_loop) as runner:
            tallies = runner.run(
                _run(console, url, traffics, rate, duration, patience, random.Random(seed))  # noqa: S311 (arrivals, no secrets)
            )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    except OSError as error:
        console.print(f"{url} cannot be reached: {error}", markup=False)
        console.print("Is Tidegate up? Start it with `tidegate up` in another terminal.")
        raise typer.Exit(_UNREACHABLE) from error
    console.print(table(tallies))
    for note in notes(tallies):
        console.print(note, markup=False)


async def _run(
    console: Console,
    url: str,
    traffics: Sequence[Traffic],
    rate: float,
    duration: float,
    patience: float,
    rng: random.Random,
) -> Mapping[str, Tally]:
    async with Client(url, clock=time.monotonic) as client:
        load = Load(client, traffics, rng)
        await client.connect(_CONNECTIONS)
        with Live(console=console, auto_refresh=False, transient=True) as live:
            async with asyncio.TaskGroup() as tasks:
                showing = tasks.create_task(_show(live, load.tallies))
                # Ctrl-C ends the load; what came of it so far is still told.
                with contextlib.suppress(asyncio.CancelledError):
                    await load.run(poisson(rate, duration, rng), patience=patience)
                showing.cancel()
    return load.tallies


async def _show(live: Live, tallies: Mapping[str, Tally]) -> None:
    while True:
        await asyncio.sleep(_REFRESH)
        live.update(table(tallies, recent=RECENT), refresh=True)


def table(tallies: Mapping[str, Tally], recent: int | None = None) -> Table:
    """Return what came of the load, a line for each tenant.

    Args:
        tallies: the counts by tenant.
        recent: look at that many of the last latencies only, because all of them take too long.
    """
    shown = Table(
        box=box.SIMPLE_HEAD,  # narrow: large numbers fit into 80 columns
        padding=(0, 1, 0, 0),
        caption="ms: time to first byte, p50 / p99, from when a request was due",
    )
    shown.add_column("tenant")
    for heading in ("sent", "engine", "fallback", "error", "engine ms", "fallback ms"):
        shown.add_column(heading, justify="right", no_wrap=True)
    for name, tally in tallies.items():
        shown.add_row(
            name,
            str(tally.sent),
            *(_count(tally, kind) for kind in Kind),
            *(_milliseconds(tally, kind, recent) for kind in (Kind.ENGINE, Kind.FALLBACK)),
        )
    return shown


def notes(tallies: Mapping[str, Tally]) -> list[str]:
    """Return what the table does not say: what the errors were, and whether to trust the numbers."""
    lines = [
        f"{name}: {count} × {error}"
        for name, tally in tallies.items()
        for error, count in tally.errors.most_common()
    ]
    late = max((t.lateness.percentiles(99)[0] for t in tallies.values() if t.sent), default=0.0)
    if late > 0.01:
        lines.append(
            f"1 % of the requests left more than {late * 1e3:.0f} ms late: this machine is too busy "
            "for the rate, the latencies above include that"
        )
    return lines


def parse_mix(text: str) -> dict[str, float]:
    """Return the shares of ``TENANT=SHARE,…``.

    Raises:
        typer.BadParameter: it has another form, or no share is positive.
    """
    shares: dict[str, float] = {}
    for tenant, share in _pairs(text.split(","), "--mix").items():
        try:
            shares[tenant] = float(share)
        except ValueError:
            shares[tenant] = math.nan
        if not 0 <= shares[tenant] < math.inf:
            raise typer.BadParameter(f"--mix: the share of {tenant} is not a number: {share}")
    if not any(shares.values()):
        raise typer.BadParameter("--mix: every share is 0")
    return shares


def _pairs(items: Sequence[str], option: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for item in items:
        name, equals, value = item.strip().partition("=")
        if not (name and equals and value):
            raise typer.BadParameter(f"{option}: write it as TENANT=…, with nothing left out")
        pairs[name] = value
    return pairs


def _chat(
    model: str, max_tokens: int, words: int, *, stream: bool
) -> Callable[[random.Random], bytes]:
    def body(rng: random.Random) -> bytes:
        prompt = " ".join(rng.choices(_WORDS, k=words))
        return json.dumps(
            {
                "model": model,
                "messages": [{"role": "user", "content": prompt}],
                "max_tokens": max_tokens,
                "stream": stream,
            }
        ).encode()

    return body


def _count(tally: Tally, kind: Kind) -> str:
    count = tally.answers[kind]
    return f"{count} ({count / tally.sent:.0%})" if count else "–"


def _milliseconds(tally: Tally, kind: Kind, recent: int | None) -> str:
    latencies = tally.first_byte[kind]
    if not latencies:
        return "–"
    if recent is not None:
        latencies = latencies.recent(recent)
    return " / ".join(_short(seconds * 1e3) for seconds in latencies.percentiles(50, 99))


def _short(number: float) -> str:
    return f"{number:.1f}" if number < 100 else f"{number:.0f}"
