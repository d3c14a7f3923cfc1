"""``tidegate console``: serves the web console.

Exit codes: 0 stopped, 1 the address is taken, 2 an option is wrong.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import ssl
import sys
from pathlib import Path
from typing import Annotated

import typer
from aiohttp import web

from extproc.console.api import ControlApi
from extproc.console.guard import ExposedError, Guard, origins
from extproc.console.server import Server
from extproc.console.watch import Watch
from extproc.control.asking import DEFAULT_ADDRESS, Address, Ca, TokenFile, access, read_token
from extproc.control.client import Access, connect
from extproc.telemetry import logs

_CANNOT = 1
_WRONG = 2


def console(
    listen: Annotated[
        str, typer.Option(help="host:port for browsers; port 0: any")
    ] = "127.0.0.1:9092",
    url: Annotated[
        str | None, typer.Option(help="where browsers find it, where that is not --listen")
    ] = None,
    certificate: Annotated[
        Path | None, typer.Option(help="PEM file, to serve https", dir_okay=False)
    ] = None,
    key: Annotated[Path | None, typer.Option(help="its key", dir_okay=False)] = None,
    control: Address = DEFAULT_ADDRESS,
    token_file: TokenFile = None,
    ca: Ca = None,
) -> None:
    """Serve the web console. Its own token is a viewer's; people log in with theirs."""
    logs.configure(sys.stderr)
    logs.own_faults()
    host, _, port = listen.rpartition(":")
    try:
        way = access(control, "", ca)
        token = read_token(token_file)
        tls = _tls(certificate, key)
        if not token:
            raise ExposedError("give a viewer's token with --token-file: see tidegate token")
        if not port.isdigit():
            raise ExposedError(f"--listen {listen}: give host:port")
        asyncio.run(_serve(host.strip("[]"), int(port), url, tls, way, token))
    except ExposedError as error:
        raise _exit(str(error), _WRONG) from error
    except OSError as error:
        code = _WRONG if error.filename else _CANNOT
        raise _exit(f"{error.filename or listen}: {error.strerror}", code) from error


def _tls(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    if certificate is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key)
    except OSError as error:  # of which TLS's own errors are a kind
        raise ExposedError(f"{certificate} cannot be used: {error.strerror}") from error
    return context


async def _serve(
    host: str, port: int, url: str | None, tls: ssl.SSLContext | None, way: Access, token: str
) -> None:
    """Serve until SIGINT or SIGTERM.

    Raises:
        ExposedError: it may not be served like that.
        OSError: the address cannot be bound, or a file not be read.
    """
    stop = asyncio.Event()
    asyncio.get_running_loop().set_exception_handler(logs.loop_fault)
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    origins(host, port, encrypted=tls is not None, url=url)  # refused before anything is open
    listener = _listen(host, port)
    ours = origins(host, listener.getsockname()[1], encrypted=tls is not None, url=url)
    async with connect(way) as channel, asyncio.TaskGroup() as tasks:
        api = ControlApi(channel)
        watch = Watch(api, token)
        application = Server(api, watch, Guard(ours)).application()
        runner = web.AppRunner(
            application, access_log=None, shutdown_timeout=1.0, handler_cancellation=True
        )
        await runner.setup()
        try:
            await web.SockSite(runner, listener, ssl_context=tls).start()
            watching = tasks.create_task(watch.run())
            typer.echo(f"console: {url or min(ours)}")
            await stop.wait()
            watching.cancel()
        finally:
            await runner.cleanup()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family)


def _exit(text: str, code: int) -> typer.Exit:
    typer.echo(text, err=True)
    return typer.Exit(code)
