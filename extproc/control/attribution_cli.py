"""``tidegate explain`` and ``tidegate why``: from a running Tidegate, or from its decision log.

A log is read in this process, however long it is; the one that decides has nothing to do with it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import typer
from grpc import aio

from extproc.control.asking import (
    CANNOT,
    DEFAULT_ADDRESS,
    SECONDS,
    WRONG,
    Address,
    Ca,
    TokenFile,
    ask,
    leave,
    say,
)
from extproc.control.pb import decisions_pb2, decisions_pb2_grpc
from extproc.control.services.convert import timestamp
from extproc.control.services.decisions import names
from extproc.telemetry import decision_log, explanation, summary
from extproc.telemetry.lines import Line

Language = Annotated[Literal["en", "zh"], typer.Option("--lang", help="the language of the text")]
Log = Annotated[
    Path | None,
    typer.Option(help="read this decision log, and the older ones beside it", dir_okay=False),
]
_LAST = re.compile(r"(?P<number>\d{1,6})(?P<unit>[smhd])")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_TRY = re.compile(r"(?P<name>[A-Za-z0-9_.-]{1,64})=(?P<value>0(\.\d+)?|1(\.0+)?)")


def explain(
    ident: Annotated[
        str,
        typer.Argument(metavar="ID", help="of an exchange, a fallback, or Envoy's x-request-id"),
    ],
    log: Log = None,
    lang: Language = "en",
    control: Address = DEFAULT_ADDRESS,
    token_file: TokenFile = None,
    ca: Ca = None,
) -> None:
    """Say why a call was admitted, shed or rejected, gate by gate."""
    if log is not None:
        found = [line for line in _lines(log, 0.0) if names(line, ident)]
        if not found:
            leave(f"{log} and the older ones beside it know no call {ident}", CANNOT)
        told = explanation.explain(found[-1])
        say(told.zh if lang == "zh" else told.en)
        return

    async def work(channel: aio.Channel) -> decisions_pb2.ExplainDecisionResponse:
        stub = decisions_pb2_grpc.DecisionServiceStub(channel)
        request = decisions_pb2.ExplainDecisionRequest(id=ident)
        return await stub.ExplainDecision(request, timeout=SECONDS)

    answer = ask(work, control, token_file, ca)
    say(answer.text_zh if lang == "zh" else answer.text_en)


def why(
    last: Annotated[str, typer.Option(help="how far back, such as 90s, 15m, 2h, 1d")] = "15m",
    close: Annotated[
        list[str] | None,
        typer.Option(metavar="CLASS=RATIO", help="try another watermark, such as P2=0.1"),
    ] = None,
    concurrency: Annotated[
        list[str] | None,
        typer.Option(metavar="CLASS=SHARE", help="try another concurrency, such as P2=0.9"),
    ] = None,
    pool: Annotated[list[str] | None, typer.Option(help="only this pool; repeat for more")] = None,
    tenant: Annotated[list[str] | None, typer.Option(help="only this tenant")] = None,
    log: Log = None,
    lang: Language = "en",
    control: Address = DEFAULT_ADDRESS,
    token_file: TokenFile = None,
    ca: Ca = None,
) -> None:
    """Say what was shed and why, what there was too little of, and what other thresholds had done."""
    since = time.time() - _seconds(last)
    tried = [
        *(summary.WhatIf(name, close=value) for name, value in _tried(close)),
        *(summary.WhatIf(name, concurrency=value) for name, value in _tried(concurrency)),
    ]
    if log is not None:
        lines = (
            line
            for line in _lines(log, since)
            if (not pool or line.pool in pool) and (not tenant or line.tenant in tenant)
        )
        told = summary.summarize(lines, tried)
        say(summary.in_chinese(told) if lang == "zh" else summary.in_english(told))
        return
    request = decisions_pb2.SummarizeDecisionsRequest(
        filter=decisions_pb2.DecisionFilter(since=timestamp(since), pools=pool, tenants=tenant),
        what_if=[
            decisions_pb2.WhatIf(
                service_class=each.service_class, close=each.close, concurrency=each.concurrency
            )
            for each in tried
        ],
    )

    async def work(channel: aio.Channel) -> decisions_pb2.SummarizeDecisionsResponse:
        stub = decisions_pb2_grpc.DecisionServiceStub(channel)
        return await stub.SummarizeDecisions(request, timeout=6 * SECONDS)

    answer = ask(work, control, token_file, ca)
    say(answer.text_zh if lang == "zh" else answer.text_en)


def _lines(log: Path, since: float) -> Iterator[Line]:
    try:
        yield from (line for line in decision_log.read(log) if line.at >= since)
    except OSError as error:
        leave(f"{error.filename} cannot be read: {error.strerror}", WRONG)


def _seconds(last: str) -> float:
    match = _LAST.fullmatch(last)
    if match is None:
        leave(f"--last {last}: write such as 90s, 15m, 2h or 1d", WRONG)
    return float(match["number"]) * _UNITS[match["unit"]]


def _tried(given: list[str] | None) -> Iterator[tuple[str, float]]:
    for each in given or ():
        match = _TRY.fullmatch(each)
        if match is None:
            leave(f"{each}: write such as P2=0.1, the number from 0 to 1", WRONG)
        yield match["name"], float(match["value"])
