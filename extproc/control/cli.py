"""``tidegate mode``, ``tidegate thresholds``, ``tidegate audit`` and ``tidegate token``.

Exit codes: 0 done, 1 the control API cannot be reached or refused, 2 an option is wrong.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, NoReturn

import grpc
import typer
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from grpc import aio
from rich.console import Console
from rich.table import Table

from extproc.config import Role
from extproc.control.auth import token_line
from extproc.control.client import Access, connect
from extproc.control.pb import (
    audit_pb2,
    audit_pb2_grpc,
    modes_pb2,
    modes_pb2_grpc,
    thresholds_pb2,
    thresholds_pb2_grpc,
)
from extproc.core.modes import Mode

TOKEN_VARIABLE = "TIDEGATE_TOKEN"  # noqa: S105
_SECONDS = 10.0
_CANNOT = 1
_WRONG = 2

Address = Annotated[
    str,
    typer.Option(
        "--control", envvar="TIDEGATE_CONTROL", help="the control API, as in listen.control"
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        envvar="TIDEGATE_TOKEN_FILE", help=f"a file with the token; or set {TOKEN_VARIABLE}"
    ),
]
Ca = Annotated[
    Path | None,
    typer.Option(
        envvar="TIDEGATE_CONTROL_CA", help="with TLS: who signed the server's certificate"
    ),
]
Reason = Annotated[str, typer.Option(help="why; it goes into the audit")]
DEFAULT_ADDRESS = "127.0.0.1:9091"

mode_app = typer.Typer(no_args_is_help=True, help="Show or switch the mode.")
thresholds_app = typer.Typer(no_args_is_help=True, help="Show or change thresholds while serving.")
console = Console(soft_wrap=True, highlight=False)


@mode_app.command("show")
def show_mode(
    control: Address = DEFAULT_ADDRESS, token_file: TokenFile = None, ca: Ca = None
) -> None:
    """Say which mode is in force, who set it and why."""

    async def work(channel: aio.Channel) -> modes_pb2.ModeState:
        stub = modes_pb2_grpc.ModeServiceStub(channel)
        return await stub.GetMode(modes_pb2.GetModeRequest(), timeout=_SECONDS)

    _say(_mode_text(_ask(work, control, token_file, ca)))


@mode_app.command("set")
def set_mode(
    mode: Annotated[Mode, typer.Argument(help="the mode to go over to")],
    reason: Reason,
    evict: Annotated[
        bool, typer.Option("--evict", help="end running calls of the classes that close, too")
    ] = False,
    control: Address = DEFAULT_ADDRESS,
    token_file: TokenFile = None,
    ca: Ca = None,
) -> None:
    """Switch to a mode: here at once, elsewhere within a second."""
    request = modes_pb2.SetModeRequest(
        mode=modes_pb2.Mode.Value(f"MODE_{mode.name}"), reason=reason, evict=evict
    )

    async def work(channel: aio.Channel) -> modes_pb2.SetModeResponse:
        return await modes_pb2_grpc.ModeServiceStub(channel).SetMode(request, timeout=_SECONDS)

    done = _ask(work, control, token_file, ca)
    _say(_mode_text(done.after))
    _say(f"before: {_name(done.before)}; turned away while waiting: {done.turned_away}")
    if evict:
        _say(f"running calls that are being ended: {done.evicted}")
    _warn(done.warnings)


@thresholds_app.command("show")
def show_thresholds(
    control: Address = DEFAULT_ADDRESS, token_file: TokenFile = None, ca: Ca = None
) -> None:
    """Show the thresholds that are in force; * marks what differs from the configuration file."""

    async def work(channel: aio.Channel) -> thresholds_pb2.Thresholds:
        stub = thresholds_pb2_grpc.ThresholdServiceStub(channel)
        return await stub.GetThresholds(thresholds_pb2.GetThresholdsRequest(), timeout=_SECONDS)

    _show_thresholds(_ask(work, control, token_file, ca))


@thresholds_app.command("set")
def set_thresholds(
    reason: Reason,
    service_class: Annotated[
        str | None, typer.Option("--class", help="the class that the next options are about")
    ] = None,
    close: Annotated[float | None, typer.Option(help="closes under this free ratio")] = None,
    open_: Annotated[float | None, typer.Option("--open", help="opens above this one")] = None,
    concurrency: Annotated[float | None, typer.Option(help="share of the pool's calls")] = None,
    max_wait: Annotated[float | None, typer.Option(help="seconds in the queue")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="longest output")] = None,
    max_prompt_tokens: Annotated[int | None, typer.Option(help="longest prompt")] = None,
    weight: Annotated[float | None, typer.Option(help="share where several classes wait")] = None,
    pool: Annotated[str | None, typer.Option(help="the pool that the next option is about")] = None,
    max_concurrency: Annotated[int | None, typer.Option(help="calls in flight")] = None,
    control: Address = DEFAULT_ADDRESS,
    token_file: TokenFile = None,
    ca: Ca = None,
) -> None:
    """Change thresholds of a class or a pool; what is not given stays."""
    request = thresholds_pb2.SetThresholdsRequest(reason=reason)
    if service_class is not None:
        request.classes.add(
            name=service_class,
            close=close,
            open=open_,
            concurrency=concurrency,
            max_wait_seconds=max_wait,
            max_output_tokens=max_tokens,
            max_prompt_tokens=max_prompt_tokens,
            weight=weight,
        )
    if pool is not None:
        request.pools.add(name=pool, max_concurrency=max_concurrency)

    async def work(channel: aio.Channel) -> thresholds_pb2.SetThresholdsResponse:
        stub = thresholds_pb2_grpc.ThresholdServiceStub(channel)
        return await stub.SetThresholds(request, timeout=_SECONDS)

    _changed(_ask(work, control, token_file, ca))


@thresholds_app.command("reset")
def reset_thresholds(
    reason: Reason,
    control: Address = DEFAULT_ADDRESS,
    token_file: TokenFile = None,
    ca: Ca = None,
) -> None:
    """Go back to what the configuration file says."""
    request = thresholds_pb2.ResetThresholdsRequest(reason=reason)

    async def work(channel: aio.Channel) -> thresholds_pb2.SetThresholdsResponse:
        stub = thresholds_pb2_grpc.ThresholdServiceStub(channel)
        return await stub.ResetThresholds(request, timeout=_SECONDS)

    _changed(_ask(work, control, token_file, ca))


def audit(
    limit: Annotated[int, typer.Option(min=1, max=1000, help="how many")] = 20,
    control: Address = DEFAULT_ADDRESS,
    token_file: TokenFile = None,
    ca: Ca = None,
) -> None:
    """Show who changed what, the newest first."""

    async def work(channel: aio.Channel) -> audit_pb2.ListAuditResponse:
        stub = audit_pb2_grpc.AuditServiceStub(channel)
        return await stub.ListAudit(audit_pb2.ListAuditRequest(limit=limit), timeout=_SECONDS)

    for each in _ask(work, control, token_file, ca).entries:
        _say(
            f"{_time(each.at)}  {each.who} ({each.role}, {each.peer})  {each.action}"
            f"{f' {each.target}' if each.target else ''}: {each.before} → {each.after}"
            f"  “{each.reason}”"
        )


def token(
    who: Annotated[str, typer.Option(help="whose it is; the audit says so")],
    role: Annotated[Role, typer.Option(help="what it may do")] = Role.VIEWER,
) -> None:
    """Make a token, and the line for the file that ``control.tokens`` names."""
    made = secrets.token_urlsafe(32)
    Console(stderr=True, highlight=False).print(
        "The token, for its owner; it is not shown again:", markup=False
    )
    typer.echo(made)
    Console(stderr=True, highlight=False).print("The line for the token file:", markup=False)
    typer.echo(token_line(made, who, role), nl=False)


def _ask(work: Any, address: str, token_file: Path | None, ca: Path | None) -> Any:
    """Make one call and return its answer; say what is wrong and exit where there is none."""

    async def run() -> Message:
        async with connect(Access(address, _token(token_file), ca)) as channel:
            answer: Message = await work(channel)
            return answer

    try:
        return asyncio.run(run())
    except aio.AioRpcError as error:
        if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
            _exit(
                f"no control API answers at {address}: give --control as listen.control says, and see"
                " that the configuration names tokens (control.tokens)",
                _CANNOT,
            )
        wrong = error.code() is grpc.StatusCode.INVALID_ARGUMENT
        _exit(f"refused: {error.details()}", _WRONG if wrong else _CANNOT)
    except OSError as error:
        _exit(f"{error.filename} cannot be read: {error.strerror}", _WRONG)


def _token(file: Path | None) -> str:
    if file is not None:
        return file.read_text(encoding="utf-8").strip()
    return os.environ.get(TOKEN_VARIABLE, "").strip()


def _changed(done: thresholds_pb2.SetThresholdsResponse) -> None:
    _show_thresholds(done.after)
    _warn(done.warnings)


def _show_thresholds(now: thresholds_pb2.Thresholds) -> None:
    table = Table("", "close", "open", "concurrency", "max wait", "output", "prompt", "weight")
    fields = (
        ("close", "free_watermark.close", "{:g}"),
        ("open", "free_watermark.open", "{:g}"),
        ("concurrency", "concurrency", "{:g}"),
        ("max_wait_seconds", "max_wait", "{:g} s"),
        ("max_output_tokens", "max_tokens", "{}"),
        ("max_prompt_tokens", "max_prompt_tokens", "{}"),
        ("weight", "weight", "{:g}"),
    )
    for each in now.classes:
        cells = []
        for field, key, form in fields:
            text = form.format(getattr(each, field)) if each.HasField(field) else "–"  # type: ignore[arg-type]
            cells.append(text + "*" * (f"classes.{each.name}.{key}" in now.changed))
        table.add_row(each.name, *cells)
    console.print(table)
    for pool in now.pools:
        mark = "*" * (f"pools.{pool.name}.max_concurrency" in now.changed)
        _say(f"pool {pool.name}: {pool.max_concurrency}{mark} calls in flight")


def _mode_text(state: modes_pb2.ModeState) -> str:
    text = _name(state)
    if state.by:
        text += f", set by {state.by} at {_time(state.at)}: {state.reason}"
    if state.closed_classes:
        text += f"; turned away: {', '.join(state.closed_classes)}"
    return text


def _name(state: modes_pb2.ModeState) -> str:
    return modes_pb2.Mode.Name(state.mode).removeprefix("MODE_").lower()


def _time(stamp: Timestamp) -> str:
    return (
        datetime.fromtimestamp(stamp.ToMicroseconds() / 1e6).astimezone().isoformat(" ", "seconds")
    )


def _warn(warnings: Any) -> None:
    for each in warnings:
        Console(stderr=True, soft_wrap=True, highlight=False).print(
            f"warning: {each}", markup=False
        )


def _say(text: str) -> None:
    console.print(text, markup=False)


def _exit(text: str, code: int) -> NoReturn:
    Console(stderr=True, soft_wrap=True, highlight=False).print(text, markup=False)
    raise typer.Exit(code)
