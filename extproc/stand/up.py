"""Starts the stand, tells how to try it, and shows who gets in, until it is stopped.

Rules this module keeps:

* Engines and Tidegate first, then Envoy; each is waited for. They stop in the opposite order.
* What runs is what a deployment runs: the same commands, the same generated Envoy configuration.
"""

from __future__ import annotations

import asyncio
import contextlib
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import aiohttp
from rich.console import Console

from extproc.config import Role
from extproc.control.auth import token_line
from extproc.envoyconf.binary import find_envoy
from extproc.stand.children import Child, child
from extproc.stand.plan import Plan, tidegate
from extproc.stand.redis import redis_command
from extproc.stand.tally import read_tally

START_SECONDS = 30.0


class NotReadyError(RuntimeError):
    """A part of the stand did not come up, or an engine that it was given does not answer."""


@asynccontextmanager
async def running(plan: Plan, *, console: bool = False) -> AsyncIterator[tuple[Child, ...]]:
    """Run the whole stand, with the web console or without; inside the block all of it is up.

    Raises:
        EnvoyNotFoundError, RedisNotFoundError: something that is needed is not installed.
        ChildEndedError, NotReadyError: a process could not start.
    """
    envoy = find_envoy()
    (plan.directory / "tidegate.yaml").write_text(plan.text, encoding="utf-8")
    _put_down_tokens(plan)
    from extproc.envoyconf.bootstrap import bootstrap  # 20 MiB that `tidegate serve` has no use for

    (plan.directory / "envoy.yaml").write_text(bootstrap(plan.config), encoding="utf-8")
    envoy_command = [str(envoy), "-c", str(plan.directory / "envoy.yaml"), "--log-level", "warning"]
    envoy_command.append("--disable-hot-restart")  # else two stands fight for one socket
    async with AsyncExitStack() as stack, aiohttp.ClientSession() as session:
        children: list[Child] = []

        async def start(*steps: tuple[str, list[str], str]) -> None:
            """Start processes at a time and wait until each of them answers."""
            for name, command, _ in steps:
                started = await stack.enter_async_context(child(name, command, plan.directory))
                children.append(started)
            for started, (_, _, url) in zip(children[-len(steps) :], steps, strict=True):
                await _until(started, partial(answers, session, url))

        if plan.redis is not None:
            redis = await stack.enter_async_context(
                child("redis", redis_command(plan.redis), plan.directory)
            )
            children.append(redis)
            await _until(redis, partial(listens, plan.redis))
        await start(
            *(
                (f"engine-{number}", plan.emulator_command(port), f"http://127.0.0.1:{port}/health")
                for number, port in enumerate(plan.emulated, start=1)
            ),
            ("tidegate", plan.serve_command(), f"http://{plan.config.listen.http}/readyz"),
        )
        # Last: Envoy would find the others sick, and look again only after a while.
        await start(("envoy", envoy_command, f"http://{plan.config.envoy.admin}/ready"))
        if console:
            url = f"http://{plan.console}/healthz"
            await start(("console", plan.console_command(), url))
        yield tuple(children)


def _put_down_tokens(plan: Plan) -> None:
    """Write the operator's and the console's token, and what Tidegate knows of them, for this user."""
    known = token_line(plan.token, "stand", Role.ADMIN)
    known += token_line(plan.console_token, "console", Role.VIEWER)
    for file, text in (
        (plan.token_file, f"{plan.token}\n"),
        (plan.console_token_file, f"{plan.console_token}\n"),
        (plan.config.control.tokens, known),
    ):
        if file is not None:
            file.touch(mode=0o600)
            file.write_text(text, encoding="utf-8")


async def _until(started: Child, ready: Callable[[], Awaitable[bool]]) -> None:
    try:
        async with asyncio.timeout(START_SECONDS):
            while not await ready():
                if started.process.returncode is not None:
                    await started.ended()
                await asyncio.sleep(0.05)
    except TimeoutError as error:
        raise NotReadyError(f"{started.name} is not ready; see {started.log}") from error


async def listens(path: Path) -> bool:
    """Say whether somebody listens on a socket."""
    try:
        _, writer = await asyncio.open_unix_connection(path)
    except OSError:
        return False
    writer.close()
    return True


async def answers(session: aiohttp.ClientSession, url: str) -> bool:
    """Say whether a page is answered with 200."""
    try:
        async with session.get(url) as response:
            return response.status == 200
    except aiohttp.ClientError:
        return False


async def up(plan: Plan, console: Console) -> None:
    """Run the stand and show it, until cancelled.

    Raises:
        ExceptionGroup: of `ChildEndedError`, when a process ended by itself.
        ChildEndedError, NotReadyError, EnvoyNotFoundError: the stand could not start, or no vLLM
            server answers where the first engine should be.
    """
    async with running(plan, console=True) as children, aiohttp.ClientSession() as session:
        model = await served_model(session, plan.engines[0])
        console.print(_invitation(plan, model), markup=False, highlight=False, soft_wrap=True)
        async with asyncio.TaskGroup() as tasks:
            for each in children:
                tasks.create_task(each.ended())
            tasks.create_task(_show(session, plan, console))


async def served_model(session: aiohttp.ClientSession, engine: str) -> str:
    """Return the name of the model that an engine serves.

    Raises:
        NotReadyError: no vLLM server answers there.
    """
    url = f"http://{engine}/v1/models"
    try:
        async with asyncio.timeout(START_SECONDS), session.get(url) as response:
            return str((await response.json())["data"][0]["id"])
    except (aiohttp.ClientError, TimeoutError, ValueError, LookupError, TypeError) as error:
        raise NotReadyError(f"no vLLM server answers at {url}: start it first") from error


async def _show(session: aiohttp.ClientSession, plan: Plan, console: Console) -> None:
    """Show the tally: in place on a terminal, as a line per change elsewhere."""
    classes = tuple(plan.config.classes)
    shown = ""
    status = console.status("waiting for traffic")
    with status if console.is_terminal else contextlib.nullcontext() as live:
        while True:
            with contextlib.suppress(aiohttp.ClientError):
                async with session.get(plan.metrics_url) as response:
                    line = read_tally(await response.text()).line(classes)
                if live is not None:
                    live.update(line)
                elif line != shown:
                    console.print(line, markup=False, highlight=False, soft_wrap=True)
                    shown = line
            await asyncio.sleep(1.0)


def _invitation(plan: Plan, model: str) -> str:
    url = f"http://{plan.envoy}"
    config = plan.config
    tenants = ", ".join(f"{name} = {each.class_}" for name, each in config.tenants.items())
    tenant = next(iter(config.tenants), config.identity.default_tenant)
    named_by = (source.header.name for source in config.identity.sources if source.header)
    header = next(named_by, "x-tenant-id")
    load = [*tidegate(), "load", "--url", url, "--model", model]
    if header != "x-tenant-id":
        load += ["--tenant-header", header]
    return f"""\
Tidegate is up.
  clients   {url}   (OpenAI and Anthropic endpoints, /v1/…)
  engines   {", ".join(f"http://{each}" for each in plan.engines)}{" (emulated)" if plan.emulated else ""}
  console   http://{plan.console}   (log in with the token in {plan.token_file})
  metrics   {plan.metrics_url}
  envoy     http://{plan.config.envoy.admin}
  control   {plan.config.listen.control}   (the same token)
  files     {plan.directory}

Tenants: {tenants or "none of their own"}. In a shell:

curl {url}/v1/chat/completions \\
  -H 'content-type: application/json' -H '{header}: {tenant}' \\
  -d '{{"model": "{model}", "max_tokens": 32,
       "messages": [{{"role": "user", "content": "hello"}}]}}'

in Python, with `pip install openai`:

from openai import OpenAI
client = OpenAI(base_url="{url}/v1", api_key="none",
                default_headers={{"{header}": "{tenant}"}})
print(client.chat.completions.create(
    model="{model}",
    messages=[{{"role": "user", "content": "hello"}}]))

or with `pip install anthropic` (its base_url has no /v1):

from anthropic import Anthropic
client = Anthropic(base_url="{url}", api_key="none",
                   default_headers={{"{header}": "{tenant}"}})
print(client.messages.create(
    model="{model}", max_tokens=32,
    messages=[{{"role": "user", "content": "hello"}}]))

Make a peak in a second terminal:

{shlex.join(load)}

Or turn away all but payments, and go back:

export TIDEGATE_CONTROL={plan.config.listen.control} TIDEGATE_TOKEN_FILE={plan.token_file}
{shlex.join([*tidegate(), "mode", "set", "transactions_only", "--reason", "a try"])}
{shlex.join([*tidegate(), "mode", "set", "normal", "--reason", "tried"])}

Ctrl-C stops it all.
"""
