"""How the commands of operators ask the control API: its options, its errors.

Exit codes: 1 the control API cannot be reached or refused, 2 an option is wrong.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime
from pathlib import Path
from typing import Annotated, NoReturn, TypeVar

import grpc
import typer
from google.protobuf.timestamp_pb2 import Timestamp
from grpc import aio
from rich.console import Console
from rich.table import Table

from extproc.control.client import Access, connect

T = TypeVar("T")

TOKEN_VARIABLE = "TIDEGATE_TOKEN"  # noqa: S105
CERTIFICATE_VARIABLE, KEY_VARIABLE = "TIDEGATE_CONTROL_CERTIFICATE", "TIDEGATE_CONTROL_KEY"
SECONDS = 10.0
"""How long an answer may take."""
CANNOT, WRONG = 1, 2

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
        envvar="TIDEGATE_CONTROL_CA",
        help="with TLS: who signed the server's certificate; a client certificate is shown where "
        f"{CERTIFICATE_VARIABLE} and {KEY_VARIABLE} name its files",
    ),
]
Reason = Annotated[str, typer.Option(help="why; it goes into the audit")]
DEFAULT_ADDRESS = "127.0.0.1:9091"


def ask(
    work: Callable[[aio.Channel], Awaitable[T]],
    address: str,
    token_file: Path | None,
    ca: Path | None,
) -> T:
    """Return the answer to one call; where there is none say why, and exit."""

    async def run() -> T:
        async with connect(access(address, read_token(token_file), ca)) as channel:
            return await work(channel)

    try:
        return asyncio.run(run())
    except aio.AioRpcError as error:
        if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
            leave(
                f"no control API answers at {address}: give --control as listen.control says, and see"
                " that the configuration names tokens (control.tokens)",
                CANNOT,
            )
        wrong = error.code() is grpc.StatusCode.INVALID_ARGUMENT
        leave(f"refused: {error.details()}", WRONG if wrong else CANNOT)
    except OSError as error:
        leave(f"{error.filename} cannot be read: {error.strerror}", WRONG)


def access(address: str, token: str, ca: Path | None) -> Access:
    """Return how to reach a control API, with the client certificate of the environment."""
    certificate, key = (os.environ.get(each) for each in (CERTIFICATE_VARIABLE, KEY_VARIABLE))
    if ca is None or not (certificate and key):
        return Access(address, token, ca)
    return Access(address, token, ca, Path(certificate), Path(key))


def read_token(file: Path | None) -> str:
    """Return the caller's token: from a file, else from the environment; "" where there is none.

    Raises:
        OSError: the file cannot be read.
    """
    if file is not None:
        return file.read_text(encoding="utf-8").strip()
    return os.environ.get(TOKEN_VARIABLE, "").strip()


def local_time(stamp: Timestamp) -> str:
    """Return a time for people."""
    at = datetime.fromtimestamp(stamp.ToMicroseconds() / 1e6).astimezone()
    return at.isoformat(" ", "seconds")


def say(text: str) -> None:
    """Print a line."""
    Console(soft_wrap=True, highlight=False).print(text, markup=False)


def show(table: Table) -> None:
    """Print a table."""
    Console(highlight=False).print(table)


def warn(warnings: Iterable[str]) -> None:
    """Print what could not be done besides."""
    for each in warnings:
        Console(stderr=True, soft_wrap=True, highlight=False).print(
            f"warning: {each}", markup=False
        )


def leave(text: str, code: int) -> NoReturn:
    """Say what is wrong, and exit."""
    Console(stderr=True, soft_wrap=True, highlight=False).print(text, markup=False)
    raise typer.Exit(code)
