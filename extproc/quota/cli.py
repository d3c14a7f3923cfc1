"""``tidegate quota``: tenants' quotas and compensation, from the command line.

Rule this module keeps: what speaks to a database is imported when a command runs, and where that is
not installed the command says so.

Exit codes are those of `extproc.cli`.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console

from extproc.config import ConfigError, load
from extproc.quota.errors import QuotaError

if TYPE_CHECKING:
    from extproc.quota.commands import Commands

CANNOT_RUN = 1
BAD_CONFIGURATION = 2

quota = typer.Typer(
    name="quota", no_args_is_help=True, help="Quotas: what tenants have, used and get back."
)
ConfigFile = Annotated[Path, typer.Option("--config", help="the configuration", dir_okay=False)]
TenantName = Annotated[str, typer.Argument(metavar="TENANT", help="the tenant's name")]
LanguageOption = Annotated[
    Literal["en", "zh"] | None, typer.Option(help="of the text; default: the tenant's")
]
Ident = Annotated[
    str | None, typer.Option("--id", help="under the same id it happens once; default: a new one")
]


@quota.command()
def show(tenant: TenantName, config: ConfigFile, language: LanguageOption = None) -> None:
    """Show what a tenant has, has used and has left in this period."""
    with _ledger(config) as commands:
        commands.show(tenant, language)


@quota.command()
def grant(
    tenant: TenantName,
    tokens: Annotated[int, typer.Argument(min=1, max=1 << 53, help="how many to give")],
    config: ConfigFile,
    reason: Annotated[str, typer.Option(help="stands on the statement")] = "",
    ident: Ident = None,
) -> None:
    """Give a tenant tokens for this period."""
    with _ledger(config) as commands:
        commands.give("grant", tenant, tokens, ident or uuid.uuid4().hex, reason)


@quota.command(context_settings={"ignore_unknown_options": True})
def adjust(
    tenant: TenantName,
    tokens: Annotated[
        int, typer.Argument(min=-(1 << 53), max=1 << 53, help="to add; under 0 takes away")
    ],
    config: ConfigFile,
    reason: Annotated[str, typer.Option(help="stands on the statement")],
    ident: Ident = None,
) -> None:
    """Correct what a tenant has left in this period, up or down."""
    with _ledger(config) as commands:
        commands.give("adjust", tenant, tokens, ident or uuid.uuid4().hex, reason)


@quota.command()
def statement(
    tenant: TenantName,
    config: ConfigFile,
    at: Annotated[
        datetime | None, typer.Option(help="a moment of the period, in UTC; default: now")
    ] = None,
    form: Annotated[
        Literal["table", "csv", "json"], typer.Option("--format", help="json: a line each")
    ] = "table",
    language: LanguageOption = None,
) -> None:
    """List what a tenant was given and charged in a period, each charge with its exchange and outcome."""
    moment = None if at is None else at.replace(tzinfo=UTC)
    with _ledger(config) as commands:
        commands.statement(tenant, moment, form, language)


@quota.command()
def compensate(
    campaign: Annotated[str, typer.Option(help="its id; each happens once")],
    config: ConfigFile,
    below: Annotated[
        float, typer.Option(help="who has used less than this share of the total starts anew")
    ] = 0.25,
    bonus: Annotated[float, typer.Option(help="all others get this share of the total")] = 0.25,
    apply: Annotated[
        bool, typer.Option("--apply/--dry-run", help="do it, or only say what would be done")
    ] = False,
) -> None:
    """Compensate every subscription that is valid now; stopped half-way, run it again."""
    with _ledger(config) as commands:
        commands.compensate(campaign, below, bonus, apply=apply)


@quota.command()
def migrate(config: ConfigFile) -> None:
    """Make or update the ledger's tables; `tidegate serve` does so too."""
    with _ledger(config) as commands:
        commands.migrated()


@quota.command()
def rebuild(config: ConfigFile) -> None:
    """Make all balances anew from the ledger's transactions, and say how many were wrong."""
    with _ledger(config) as commands:
        commands.rebuild()


@contextlib.contextmanager
def _ledger(file: Path) -> Iterator[Commands]:
    """Give what the commands do, and end the command where something cannot be used."""
    try:
        settings = load(file)
    except ConfigError as error:
        problems = (f"\n  {problem}" for problem in error.problems)
        raise _end(f"{error.file} cannot be used:{''.join(problems)}", BAD_CONFIGURATION) from error
    try:
        from extproc.quota.commands import open_commands
    except ModuleNotFoundError as error:
        raise _end("the ledger is not installed: pip install 'tidegate[quota]'") from error
    try:
        with open_commands(settings) as commands:
            yield commands
    except QuotaError as error:
        raise _end(str(error)) from error


def _end(text: str, code: int = CANNOT_RUN) -> typer.Exit:
    Console(stderr=True, soft_wrap=True, highlight=False).print(text, markup=False)
    return typer.Exit(code)
