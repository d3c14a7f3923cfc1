"""Several Tidegates, Envoys and engines with one Redis and one ledger: all of them processes to be killed.

Used by tests, and by `python -m tests.cluster.soak`.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from prometheus_client.parser import text_string_to_metric_families

from extproc.config import Role, parse, processor_addresses
from extproc.control.auth import token_line
from extproc.control.client import Access, connect
from extproc.control.pb import modes_pb2, modes_pb2_grpc
from extproc.envoyconf.binary import find_envoy
from extproc.envoyconf.bootstrap import bootstrap
from extproc.stand.children import Child, child
from extproc.stand.plan import tidegate
from extproc.stand.ports import free_ports
from extproc.stand.redis import redis_command
from extproc.stand.up import answers, listens

MODEL = "qwen"
TOKEN = "of-the-tests-alone-0123456789"
STARTED, AGAIN = 30.0, 30.0
CLASSES = {"pay": "P0", "service": "P1", "marketing": "P2"}
BASE = """\
identity:
  sources:
    - header: {name: x-tenant-id, trusted: true}
plans:
  big: {requests_per_minute: 1000000, tokens_per_minute: 1000000000, quota: {tokens: 1000000000}}
tenants:
  pay:       {class: P0, plan: big}
  service:   {class: P1, plan: big}
  marketing: {class: P2, plan: big}
  anonymous: {class: P2}
fallback: {language: en}
"""


class Samples:
    """The samples of one or several metrics pages."""

    def __init__(self, *pages: str) -> None:
        self._samples = [
            (sample.name, sample.labels, sample.value)
            for page in pages
            for family in text_string_to_metric_families(page)
            for sample in family.samples
        ]

    def values(self, name: str, **labels: str) -> list[float]:
        """Return the values of ``tidegate_NAME`` with at least these labels (``class_`` for class)."""
        wanted = {key.rstrip("_"): value for key, value in labels.items()}.items()
        return [
            value
            for sample, has, value in self._samples
            if sample == f"tidegate_{name}" and wanted <= has.items()
        ]

    def sum(self, name: str, **labels: str) -> float:
        return sum(self.values(name, **labels))


@dataclass
class Cluster:
    """What runs; Tidegates are ``tidegate-1``…, Envoys ``envoy-1``…, then ``engine-1``… and ``redis``.

    Attributes:
        commands: how each process is started, by its name.
        pages: Tidegates' pages, by the name of their process.
        urls: where the Envoys listen.
        controls: Tidegates' control APIs.
    """

    directory: Path
    stack: AsyncExitStack
    http: aiohttp.ClientSession
    commands: dict[str, list[str]] = field(default_factory=dict)
    ready: dict[str, Callable[[], Awaitable[bool]]] = field(default_factory=dict)
    children: dict[str, Child] = field(default_factory=dict)
    pages: dict[str, str] = field(default_factory=dict)
    urls: list[str] = field(default_factory=list)
    engines: list[str] = field(default_factory=list)
    controls: list[str] = field(default_factory=list)
    starts: int = 0

    async def start(self, *names: str) -> None:
        """Start processes, and wait until each answers."""
        for name in names:
            self.starts += 1
            self.children[name] = await self.stack.enter_async_context(
                child(f"{name}.{self.starts}", self.commands[name], self.directory)
            )
        for name in names:
            await eventually(self.ready[name], f"{name} answers", STARTED)

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a process and all that it has started."""
        os.killpg(self.children[name].process.pid, number)

    async def kill(self, name: str) -> None:
        """Kill a process as the kernel would."""
        self.signal(name, signal.SIGKILL)
        await self.children[name].process.wait()

    def pid(self, name: str) -> int:
        return self.children[name].process.pid

    def running(self) -> list[str]:
        """Return the names of the Tidegates that run."""
        return [each for each in self.pages if self.children[each].process.returncode is None]

    async def page(self, name: str) -> str:
        async with self.http.get(f"{self.pages[name]}/metrics") as reply:
            return await reply.text()

    async def samples(self, *names: str) -> Samples:
        """Return the samples of these Tidegates, or of all that run."""
        pages = await asyncio.gather(*(self.page(each) for each in names or self.running()))
        return Samples(*pages)

    async def until(
        self, wanted: Callable[[Samples], bool], what: str, seconds: float = 20
    ) -> None:
        """Wait until the metrics of all Tidegates that run are as wanted."""

        async def held() -> bool:
            with suppress(aiohttp.ClientError):
                return wanted(await self.samples())
            return False

        await eventually(held, what, seconds)

    async def settled(self, seconds: float = 20) -> None:
        """Wait until nothing is in flight, held, or on its way to the ledger."""
        names = ("in_flight", "queue_depth", "holds", "held_tokens", "outbox_records")
        await self.until(
            lambda seen: all(seen.sum(name) == 0 for name in names), "all settled", seconds
        )

    async def fault(self, engine: int, **changes: Any) -> None:
        """Change what is wrong with an engine, counted from 1."""
        url = f"http://{self.engines[engine - 1]}/_emulator/faults"
        async with self.http.post(url, json=changes) as reply:
            assert reply.status == 200, await reply.text()

    async def show_usage(self, used: float | None) -> None:
        """Let all engines tell this usage of their cache, and wait until all Tidegates know."""
        for number in range(1, len(self.engines) + 1):
            await self.fault(number, kv_usage=used)
        if used is not None:
            await self.until(
                lambda seen: (
                    len(found := seen.values("endpoint_kv_usage")) >= len(self.engines)
                    and all(abs(each - used) < 1e-6 for each in found)
                ),
                f"a usage of {used}",
            )

    async def set_mode(self, mode: modes_pb2.Mode.ValueType) -> None:
        """Switch over at the first Tidegate."""
        async with connect(Access(self.controls[0], TOKEN)) as channel:
            request = modes_pb2.SetModeRequest(mode=mode, reason="test")
            await modes_pb2_grpc.ModeServiceStub(channel).SetMode(request)

    async def post(self, envoy: int, body: dict[str, Any], tenant: str, **headers: str) -> Reply:
        """Send a call through an Envoy, counted from 1."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.http.post(
            f"{self.urls[envoy - 1]}/v1/chat/completions",
            json=body,
            headers={"x-tenant-id": tenant, **named},
        ) as reply:
            return Reply(reply.status, dict(reply.headers), await reply.read())


@dataclass(frozen=True)
class Reply:
    """An answer, whole."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def verdict(self) -> str:
        return self.headers.get("x-tidegate-verdict", "")

    @property
    def reason(self) -> str:
        return self.headers.get("x-tidegate-reason", "")

    def json(self) -> Any:
        return json.loads(self.body)


async def eventually(wanted: Callable[[], Awaitable[bool]], what: str, seconds: float = 20) -> None:
    """Wait until something holds: by state, not by time."""
    try:
        async with asyncio.timeout(seconds):
            while not await wanted():  # noqa: ASYNC110 (it is another process's)
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"never: {what}") from None


@asynccontextmanager
async def cluster(
    directory: Path,
    more: str = "",
    *,
    tidegates: int = 3,
    envoys: int = 2,
    engines: int = 2,
    apart: bool = False,
    workers: int = 1,
    redis: bool = True,
    database: str | None = None,
    engine_options: Sequence[str] = (),
    envoy_options: Sequence[str] = (),
    withdraw: float = 0,
) -> AsyncIterator[Cluster]:
    """Run a cluster.

    Args:
        directory: a folder with a short path.
        more: configuration; what it says replaces whole keys.
        tidegates, envoys, engines: how many of each.
        apart: each Envoy has a Tidegate of its own, in place of all.
        workers: of each Tidegate.
        redis: whether there is one.
        database: the ledger's URL; SQLite if there is none.
        engine_options, envoy_options: of their commands.
        withdraw: how long a Tidegate takes new calls that was told to stop.
    """
    async with AsyncExitStack() as stack:
        timeout = aiohttp.ClientTimeout(total=60)
        http = await stack.enter_async_context(
            aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0))
        )
        made = Cluster(directory, stack, http)
        ports = iter(free_ports(2 * tidegates + 2 * envoys + engines))
        for number in range(1, engines + 1):
            _add_engine(made, number, next(ports), engine_options)
        if redis:
            made.commands["redis"] = redis_command(directory / "redis")
            made.ready["redis"] = lambda: listens(directory / "redis")
        sockets = processor_addresses(f"unix://{directory}/t.sock", tidegates)
        (directory / "tokens.yaml").write_text(token_line(TOKEN, "tests", Role.ADMIN))
        (directory / "ticket.key").write_text("0123456789abcdef" * 2)
        shared = _shared(made, more, redis, database)
        for number, address in enumerate(sockets, start=1):
            http_port, control_port = next(ports), next(ports)
            listen = {"processor": address, "workers": workers, "withdraw": withdraw}
            _add_tidegate(made, shared, number, listen, http_port, control_port)
        for number in range(1, envoys + 1):
            asked = (sockets[number - 1], workers) if apart else (sockets[0], tidegates)
            if not apart and workers > 1:
                assert tidegates == 1, "several Tidegates of several workers each"
                asked = (sockets[0], workers)
            _add_envoy(made, shared, number, asked, next(ports), next(ports), envoy_options)
        await made.start(*(each for each in made.commands if not each.startswith("envoy")))
        await made.start(*(each for each in made.commands if each.startswith("envoy")))
        count = tidegates * workers
        if redis and count > 1:
            await made.until(
                lambda seen: (
                    set(seen.values("replicas")) == {count}
                    and len(seen.values("replicas")) == count
                ),
                f"{count} that share",
            )
        await made.until(
            lambda seen: seen.sum("endpoint_state", state="fresh") == count * engines,
            "fresh readings",
        )
        yield made


def _shared(made: Cluster, more: str, redis: bool, database: str | None) -> dict[str, Any]:
    directory = made.directory
    settings: dict[str, Any] = {
        **yaml.safe_load(BASE),
        "pools": {
            "*": {
                "endpoints": {"static": list(made.engines)},
                "scheduling_policy": "priority",
                "max_concurrency": 256,
                "scrape": {"interval": "100ms", "stale_after": "500ms"},
            }
        },
        "tickets": {"key_file": str(directory / "ticket.key")},
        "state": {"database": database or f"sqlite:///{directory / 'ledger.db'}"},
    }
    for key, value in (yaml.safe_load(more) or {}).items():
        settings[key] = {**settings.get(key, {}), **value} if key == "pools" else value
    for pool in settings["pools"].values():
        pool.setdefault("endpoints", {"static": list(made.engines)})
    if redis:
        settings["state"]["redis"] = f"unix://{directory / 'redis'}"
    return settings


def _add_engine(made: Cluster, number: int, port: int, options: Sequence[str]) -> None:
    name = f"engine-{number}"
    policy = ["--scheduling-policy", "priority"]
    made.engines.append(f"127.0.0.1:{port}")
    made.commands[name] = [
        *tidegate(), "emulate", "--port", str(port), "--model", MODEL, *policy, *options
    ]  # fmt: skip
    made.ready[name] = lambda: answers(made.http, f"http://127.0.0.1:{port}/health")


def _add_tidegate(
    made: Cluster,
    shared: dict[str, Any],
    number: int,
    listen: dict[str, Any],
    http: int,
    control: int,
) -> None:
    name, directory = f"tidegate-{number}", made.directory
    settings = {
        **shared,
        "listen": {**listen, "http": f"127.0.0.1:{http}", "control": f"127.0.0.1:{control}"},
        "control": {
            "tokens": str(directory / "tokens.yaml"),
            "directory": str(directory / f"control-{number}"),
        },
        "state": {**shared["state"], "outbox": str(directory / f"outbox-{number}.db")},
        "decision_log": {"file": str(directory / f"decisions-{number}.jsonl")},
    }
    file = directory / f"{name}.yaml"
    file.write_text(yaml.safe_dump(settings, sort_keys=False, allow_unicode=True))
    made.commands[name] = [*tidegate(), "serve", "--config", str(file)]
    made.pages[name] = f"http://127.0.0.1:{http}"
    made.controls.append(f"127.0.0.1:{control}")
    made.ready[name] = lambda: answers(made.http, f"http://127.0.0.1:{http}/readyz")


def _add_envoy(
    made: Cluster,
    shared: dict[str, Any],
    number: int,
    asked: tuple[str, int],
    port: int,
    admin: int,
    options: Sequence[str],
) -> None:
    name, (address, count) = f"envoy-{number}", asked
    settings = {
        **shared,
        # To Envoy, workers of one Tidegate and several Tidegates are the same.
        "listen": {"processor": address, "workers": count},
        "envoy": {
            **shared.get("envoy", {}),
            "listener": f"127.0.0.1:{port}",
            "admin": f"127.0.0.1:{admin}",
        },
    }
    settings["state"] = {**shared["state"], "redis": "unix:///for-the-check-alone"}
    file = made.directory / f"{name}.yaml"
    file.write_text(bootstrap(parse(yaml.safe_dump(settings))))
    command = [str(find_envoy()), "-c", str(file), "--log-level", "warning", *options]
    made.commands[name] = [*command, "--disable-hot-restart"]
    made.urls.append(f"http://127.0.0.1:{port}")
    made.ready[name] = lambda: answers(made.http, f"http://127.0.0.1:{admin}/ready")


def chat(tokens: int = 8, **more: Any) -> dict[str, Any]:
    """Return a call whose answer has exactly so many tokens."""
    messages = [{"role": "user", "content": "please tell me about order 4711"}]
    return {"model": MODEL, "messages": messages, "max_tokens": tokens, "ignore_eos": True, **more}


def ledger(made: Cluster, statement: str) -> Iterator[Any]:
    """Yield the rows of the ledger, in SQLite or PostgreSQL."""
    import sqlalchemy as sa

    from extproc.quota.database import open_database

    settings = yaml.safe_load((made.directory / "tidegate-1.yaml").read_text())
    engine = open_database(settings["state"]["database"])
    try:
        with engine.connect() as connection:
            yield from connection.execute(sa.text(statement)).fetchall()
    finally:
        engine.dispose()
