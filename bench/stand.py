"""What is measured: Tidegate and its floors, each a processor behind an Envoy of its own.

Rules this module keeps:

* Every Envoy has the configuration that Tidegate generates; a floor differs from it only in what
  makes it that floor.
* Envoy fails closed, so an exchange that the processor never saw cannot be taken for a fast one.
* Everything listens on loopback or on a socket in a folder of its own, and ends with the block.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import aiohttp
import yaml

from extproc import contract
from extproc.config import Config, parse
from extproc.envoyconf.binary import find_envoy
from extproc.envoyconf.bootstrap import bootstrap
from extproc.sim.loadgen.http_client import Answer
from extproc.sim.loadgen.load import Kind, kind_of
from extproc.stand.children import Child, child
from extproc.stand.plan import tidegate
from extproc.stand.ports import free_port, free_ports

TENANT_HEADER = "x-tenant-id"
ADMITTED = "pay"
SHED = "marketing"
TASK_EDITED = "edited"
"""A task whose streams come through the processor."""
START_SECONDS = 60.0
_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
"""The one in C is ten times as fast, where there are many tenants."""

Edit = Callable[[dict[str, Any]], None]
"""Changes a connection manager, as the bootstrap writes it, in place."""


def unchanged(_: dict[str, Any]) -> None:
    """Leave the connection manager as it is."""


class NotReadyError(RuntimeError):
    """A gateway did not come up in time."""


@dataclass(frozen=True, slots=True)
class Gateway:
    """An Envoy with its processor.

    Attributes:
        url: where clients connect.
        processor: the process id of the processor; None for Envoy alone.
        answers: who answers each tenant.
        processes: the process ids of everything between client and engine.
        headers: what clients send beside who they are.
    """

    url: str
    processor: int | None
    answers: Mapping[str, Kind]
    processes: tuple[int, ...] = ()
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Stand:
    """Everything that is measured.

    Attributes:
        tidegate: the subject.
        passing: a no-op processor that lets every exchange pass.
        answering: a no-op processor that answers every exchange with a fallback built before.
        three_messages: as ``passing``, where Envoy sends request headers, body, response headers.
        envoy_alone: no processor and none of our filters.
    """

    tidegate: Gateway
    passing: Gateway
    answering: Gateway
    three_messages: Gateway
    envoy_alone: Gateway


@dataclass(frozen=True, slots=True)
class Flooded:
    """A gateway that is flooded, with its processes."""

    gateway: Gateway
    envoy: Child
    tidegate: Child


class Builder:
    """Starts gateways before one engine; an async context manager that ends all of them.

    Args:
        directory: for sockets, configurations and logs.
        engine: the port of the engine that is started.
        envoy_workers: worker threads of each Envoy.
        engine_options: of `bench.upstream`.
    """

    def __init__(
        self,
        directory: Path,
        engine: int,
        envoy_workers: int,
        engine_options: tuple[str, ...] = (),
    ) -> None:
        self.directory = directory
        self.engine = engine
        self._envoy_workers = envoy_workers
        self._engine_options = engine_options
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._stack.__aenter__()
        self.session = await self._stack.enter_async_context(aiohttp.ClientSession())
        command = [sys.executable, "-m", "bench.upstream", str(self.engine), *self._engine_options]
        await self.start("engine", command)
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._stack.__aexit__(*error)

    async def start(self, name: str, command: Sequence[str]) -> Child:
        """Start a process."""
        return await self._stack.enter_async_context(child(name, command, self.directory))

    async def gateway(
        self,
        name: str,
        processor: Callable[[Path, Config], list[str]] | None,
        answers: Mapping[str, Kind],
        edit: Edit = unchanged,
        more: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> Gateway:
        """Start an Envoy, and its processor unless there is none; it serves when this returns.

        Args:
            name: of its files.
            processor: its command, from a configuration's file and what is in it.
            answers: who answers each tenant.
            edit: what differs in the Envoy's configuration from what Tidegate generates.
            more: see `configuration`.

        Raises:
            EnvoyNotFoundError: Envoy is not installed.
            NotReadyError: something could not start; its log in the directory says why.
        """
        text = configuration(self.directory / f"{name}.sock", self.engine, more)
        config, file = parse(text), self.directory / f"{name}.tidegate.yaml"
        file.write_text(text, encoding="utf-8")
        started = [] if processor is None else [await self.start(name, processor(file, config))]
        envoy_file = self.directory / f"{name}.envoy.yaml"
        envoy_file.write_text(edited(bootstrap(config), edit), encoding="utf-8")
        envoy = [str(find_envoy()), "-c", str(envoy_file), "--log-level", "warning"]
        # Hot restart is about a shared id: several Envoys on one machine would collide.
        options = ["--concurrency", str(self._envoy_workers), "--disable-hot-restart"]
        started.append(await self.start(f"{name}.envoy", [*envoy, *options]))
        pids = tuple(each.process.pid for each in started)
        pid = None if processor is None else pids[0]
        built = Gateway(f"http://{config.envoy.listener}", pid, answers, pids)
        await until_serving(self.session, name, built)
        return built


@asynccontextmanager
async def running(directory: Path, *, envoy_workers: int) -> AsyncIterator[Stand]:
    """Run the whole stand; inside the block all of it is up. Raises as `Builder.gateway`."""
    passed, answered = {ADMITTED: Kind.ENGINE}, {SHED: Kind.FALLBACK}
    async with Builder(directory, free_port(), envoy_workers) as build:
        yield Stand(
            tidegate=await build.gateway("tidegate", serve, {**passed, **answered}),
            passing=await build.gateway("passing", noop("admit"), passed),
            answering=await build.gateway("answering", noop("shed"), answered),
            three_messages=await build.gateway(
                "three_messages", noop("admit"), passed, send_headers
            ),
            envoy_alone=await build.gateway("envoy_alone", None, passed, without_tidegate),
        )


@asynccontextmanager
async def flooded(directory: Path, *, valve: bool, envoy_workers: int) -> AsyncIterator[Flooded]:
    """Run Tidegate with or without the flood valve; raises as `running`."""
    engine = free_port()
    settings = yaml.safe_load(configuration(directory / "t.sock", engine))
    settings["envoy"] |= {"valve": {} if valve else None, "admin": f"127.0.0.1:{free_port()}"}
    text = yaml.safe_dump(settings)
    file, envoy_file, config = directory / "t.yaml", directory / "envoy.yaml", parse(text)
    file.write_text(text, encoding="utf-8")
    envoy_file.write_text(bootstrap(config), encoding="utf-8")
    envoy = [str(find_envoy()), "-c", str(envoy_file), "--log-level", "critical"]
    options = ["--concurrency", str(envoy_workers), "--disable-hot-restart"]
    async with (
        child("engine", [sys.executable, "-m", "bench.upstream", str(engine)], directory),
        child("tidegate", serve(file, config), directory) as processor,
        child("envoy", [*envoy, *options], directory) as proxy,
        aiohttp.ClientSession() as session,
    ):
        url, pid = f"http://{config.envoy.listener}", processor.process.pid
        gateway = Gateway(url, pid, {ADMITTED: Kind.ENGINE, SHED: Kind.FALLBACK})
        await until_serving(session, "tidegate", gateway)
        yield Flooded(gateway, proxy, processor)


def configuration(
    socket: Path, engine: int, more: Mapping[str, Mapping[str, Any]] | None = None
) -> str:
    """Return the text of a configuration in which `ADMITTED` is admitted and `SHED` is shed.

    Args:
        socket: where the processor listens.
        engine: the engine's port.
        more: what replaces keys written here, or in a section of these.
    """
    http, control, listener = free_ports(3)
    settings: dict[str, dict[str, Any]] = {
        "listen": {
            "processor": f"unix://{socket}",
            "http": f"127.0.0.1:{http}",
            "control": f"127.0.0.1:{control}",
            "withdraw": 0,
        },
        "envoy": {
            "listener": f"127.0.0.1:{listener}",
            "admin": None,
            "failure_mode": "closed",
        },
        "identity": {"sources": [{"header": {"name": TENANT_HEADER, "trusted": True}}]},
        "tenants": {ADMITTED: {"class": "P0"}, SHED: {"class": "P2"}},
        "tasks": {TASK_EDITED: {"stop_on": "complete_json"}},
        "pools": {
            "*": {
                "endpoints": {"static": [f"127.0.0.1:{engine}"]},
                # Never the limit here: the load decides how much is in flight.
                "max_concurrency": 1_000_000,
                "scheduling_policy": "priority",
            }
        },
    }
    for section, keys in (more or {}).items():
        settings[section] = {**settings.get(section, {}), **keys}
    return yaml.dump(settings, Dumper=_DUMPER, sort_keys=False)


def edited(text: str, edit: Edit) -> str:
    """Return a bootstrap whose connection manager is changed."""
    document = yaml.safe_load(text)
    (listener,) = document["static_resources"]["listeners"]
    edit(listener["filter_chains"][0]["filters"][0]["typed_config"])
    return yaml.safe_dump(document, sort_keys=False)


def send_headers(manager: dict[str, Any]) -> None:
    """Have Envoy send request headers in a message of their own, not as attributes."""
    (ext_proc,) = (f for f in manager["http_filters"] if f["name"] == contract.FILTER_NAME)
    ext_proc["typed_config"]["processing_mode"]["request_header_mode"] = "SEND"
    del ext_proc["typed_config"]["request_attributes"]


def without_tidegate(manager: dict[str, Any]) -> None:
    """Leave nothing but the router."""
    manager["http_filters"] = manager["http_filters"][-1:]
    manager.pop("access_log", None)


def serve(file: Path, _: Config) -> list[str]:
    """Return the command that runs Tidegate."""
    return [*tidegate(), "serve", "--config", str(file)]


def noop(*options: str) -> Callable[[Path, Config], list[str]]:
    """Return what makes the command of a no-op processor with these options."""

    def command(_: Path, config: Config) -> list[str]:
        return [sys.executable, "-m", "bench.noop", config.listen.processor, *options]

    return command


async def until_serving(session: aiohttp.ClientSession, name: str, gateway: Gateway) -> None:
    """Wait until a gateway answers as it should.

    Raises:
        NotReadyError: it does not.
    """
    try:
        async with asyncio.timeout(START_SECONDS):
            for tenant, expected in gateway.answers.items():
                while True:
                    if await _answer(session, gateway, tenant) is expected:
                        break
                    await asyncio.sleep(0.1)
    except TimeoutError as error:
        raise NotReadyError(f"{name} does not serve {gateway.url} as it should") from error


async def _answer(session: aiohttp.ClientSession, gateway: Gateway, tenant: str) -> Kind:
    request = {"model": "bench", "messages": [{"role": "user", "content": "ready?"}]}
    headers = {TENANT_HEADER: tenant, **dict(gateway.headers)}
    try:
        async with session.post(
            f"{gateway.url}/v1/chat/completions", json=request, headers=headers
        ) as response:
            return kind_of(Answer(response.status, await response.read(), 0.0, 0.0))
    except aiohttp.ClientError:
        return Kind.ERROR
