"""``tidegate mode``, ``tidegate thresholds``, ``tidegate audit`` and ``tidegate token``.

Exit codes: 0 done, 1 the control API cannot be reached or refused, 2 an option is wrong.
"""

from __future__ import annotations

import secrets
from typing import Annotated

import typer
from grpc import aio
from rich.console import Console
from rich.table import Table

from extproc.config import Role
from extproc.control.asking import (
    DEFAULT_ADDRESS,
    SECONDS,
    Address,
    Ca,
    Reason,
    TokenFile,
    ask,
    local_time,
    say,
    show,
    warn,
)
from extproc.control.auth import token_line
from extproc.control.pb import (
    audit_pb2,
    audit_pb2_grpc,
    modes_pb2,
    modes_pb2_grpc,
    thresholds_pb2,
    thresholds_pb2_grpc,
)
from extproc.core.modes import Mode

mode_app = typer.Typer(no_args_is_help=True, help="Show or switch the mode.")
thresholds_app = typer.Typer(no_args_is_help=True, help="Show or change thresholds while serving.")


@mode_app.command("show")
def show_mode(
    control: Address = DEFAULT_ADDRESS, token_file: TokenFile = None, ca: Ca = None
) -> None:
    """Say which mode is in force, who set it and why."""

    async def work(channel: aio.Channel) -> modes_pb2.ModeState:
        stub = modes_pb2_grpc.ModeServiceStub(channel)
        return await stub.GetMode(modes_pb2.GetModeRequest(), timeout=SECONDS)

    say(_mode_text(ask(work, control, token_file, ca)))


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
        return await modes_pb2_grpc.ModeServiceStub(channel).SetMode(request, timeout=SECONDS)

    done = ask(work, control, token_file, ca)
    say(_mode_text(done.after))
    say(f"before: {_name(done.before)}; turned away while waiting: {done.turned_away}")
    if evict:
        say(f"running calls that are being ended: {done.evicted}")
    warn(done.warnings)


@thresholds_app.command("show")
def show_thresholds(
    control: Address = DEFAULT_ADDRESS, token_file: TokenFile = None, ca: Ca = None
) -> None:
    """Show the thresholds that are in force; * marks what differs from the configuration file."""

    async def work(channel: aio.Channel) -> thresholds_pb2.Thresholds:
        stub = thresholds_pb2_grpc.ThresholdServiceStub(channel)
        return await stub.GetThresholds(thresholds_pb2.GetThresholdsRequest(), timeout=SECONDS)

    _show_thresholds(ask(work, control, token_file, ca))


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
        return await stub.SetThresholds(request, timeout=SECONDS)

    _changed(ask(work, control, token_file, ca))


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
        return await stub.ResetThresholds(request, timeout=SECONDS)

    _changed(ask(work, control, token_file, ca))


def audit(
    limit: Annotated[int, typer.Option(min=1, max=1000, help="how many")] = 20,
    control: Address = DEFAULT_ADDRESS,
    token_file: TokenFile = None,
    ca: Ca = None,
) -> None:
    """Show who changed what, the newest first."""

    async def work(channel: aio.Channel) -> audit_pb2.ListAuditResponse:
        stub = audit_pb2_grpc.AuditServiceStub(channel)
        return await stub.ListAudit(audit_pb2.ListAuditRequest(limit=limit), timeout=SECONDS)

    for each in ask(work, control, token_file, ca).entries:
        say(
            f"{local_time(each.at)}  {each.who} ({each.role}, {each.peer})  {each.action}"
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


def _changed(done: thresholds_pb2.SetThresholdsResponse) -> None:
    _show_thresholds(done.after)
    warn(done.warnings)


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
    show(table)
    for pool in now.pools:
        mark = "*" * (f"pools.{pool.name}.max_concurrency" in now.changed)
        say(f"pool {pool.name}: {pool.max_concurrency}{mark} calls in flight")


def _mode_text(state: modes_pb2.ModeState) -> str:
    text = _name(state)
    if state.by:
        text += f", set by {state.by} at {local_time(state.at)}: {state.reason}"
    if state.closed_classes:
        text += f"; turned away: {', '.join(state.closed_classes)}"
    return text


def _name(state: modes_pb2.ModeState) -> str:
    return modes_pb2.Mode.Name(state.mode).removeprefix("MODE_").lower()
