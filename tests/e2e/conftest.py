"""The whole: a real Envoy, Tidegate in its own process, emulated engines that tests can break."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx
import pytest
import pytest_asyncio
import yaml
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families

from extproc.core.outcomes import Outcome
from extproc.sim.emulator import Emulator, EmulatorOptions
from extproc.sim.emulator.faults import Faults
from extproc.sim.engine_config import EngineConfig, Policy
from extproc.stand.children import Child, child
from extproc.stand.plan import Plan, make_plan
from extproc.stand.up import running
from tests.http_server import answering

CONFIG = """\
identity:
  sources:
    - header: {name: x-tenant-id, trusted: true}
tenants:
  pay:       {class: P0}
  service:   {class: P1}
  marketing: {class: P2}
  anonymous: {class: P2}
fallback: {language: en}
pools:
  "*": {scheduling_policy: priority, max_concurrency: 64, scrape: {interval: 50ms, stale_after: 500ms}}
"""

CLASSES = ("P0", "P1", "P2")
CANARY = "canary-0c9b4e"
SECRETS = {
    "authorization": f"Bearer sk-{CANARY}",
    "x-api-key": CANARY,
    "cookie": f"session={CANARY}",
    "x-secret": CANARY,
}
"""Headers of every call of the suite, unless a test sends its own; SDKs have such a key, too."""
_SAID_UNDER = frozenset(("content", "prompt", "input", "text", "instructions", "system"))


class Confidences:
    """What callers said: no log, metric, trace, audit or other file of a stand may hold any of it.

    Texts of less than five characters are not known again. So a prompt in these tests must be no word
    that logs or files hold for other reasons.
    """

    def __init__(self) -> None:
        self._texts = {CANARY}

    async def hear(self, request: httpx.Request) -> None:
        """Note what a request says; a hook of httpx. Uploads that are streamed are not read."""
        with contextlib.suppress(httpx.RequestNotRead):
            self.note(request.content)

    def note(self, body: bytes) -> None:
        """Note the prompts in a body, if it is JSON, by their first characters."""
        with contextlib.suppress(ValueError, RecursionError):
            self._texts.update(text[:40] for text in _said(json.loads(body)) if len(text) >= 5)

    def assert_kept(self, directory: Path) -> None:
        """Look through all files, for the texts as they are and as JSON escapes them."""
        songs = {form.encode() for each in self._texts for form in (each, json.dumps(each)[1:-1])}
        told = [
            (file.name, song)
            for file in sorted(directory.rglob("*"))
            if file.is_file()
            for content in [file.read_bytes()]
            for song in songs
            if song in content
        ]
        assert told == []


def _said(body: Any, under: str = "") -> Iterator[str]:
    if isinstance(body, dict):
        for key, value in body.items():
            yield from _said(value, key)
    elif isinstance(body, list):
        for value in body:
            yield from _said(value, under)
    elif isinstance(body, str) and under in _SAID_UNDER:
        yield body


class Samples:
    """The samples of one metrics page."""

    def __init__(self, page: str) -> None:
        self._samples = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(page)
            for sample in family.samples
        }

    def __str__(self) -> str:
        return "\n".join(
            f"{name} {dict(labels)} {value}"
            for (name, labels), value in self._samples.items()
            if not name.endswith(("_bucket", "_created"))
        )

    def of(self, name: str, **labels: str) -> float | None:
        """Return the value of ``tidegate_NAME`` with these labels (``class_`` for class)."""
        plain = {key.rstrip("_"): value for key, value in labels.items()}
        return self._samples.get((f"tidegate_{name}", frozenset(plain.items())))

    def sum(self, name: str, **labels: str) -> float:
        """Return the sum of the samples of ``tidegate_NAME`` that have at least these labels."""
        wanted = {(key.rstrip("_"), value) for key, value in labels.items()}
        return sum(
            value
            for (sample, has), value in self._samples.items()
            if sample == f"tidegate_{name}" and wanted <= has
        )


@dataclass(frozen=True)
class Received:
    """A generating call as an engine got it; the body only where it is short."""

    headers: dict[str, str]
    length: int
    sha256: str
    body: bytes


async def eventually(
    wanted: Callable[[], bool | Awaitable[bool]], what: str, seconds: float = 10
) -> None:
    """Wait until something holds: by state, not by time."""
    try:
        async with asyncio.timeout(seconds):
            while True:
                held = wanted()
                if held if isinstance(held, bool) else await held:
                    return
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"never: {what}") from None


@dataclass
class Stand:
    """A running stand and the hands that tests lay on it."""

    plan: Plan
    engines: list[Emulator]
    children: dict[str, Child]
    http: httpx.AsyncClient
    stack: AsyncExitStack
    confidences: Confidences
    seen: dict[str, int] = field(default_factory=dict)
    before: Samples = field(default_factory=lambda: Samples(""))

    eventually = staticmethod(eventually)

    @property
    def url(self) -> str:
        return f"http://{self.plan.envoy}"

    async def post(
        self, body: Mapping[str, Any] | bytes, path: str = "/v1/chat/completions", **headers: str
    ) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.http.post(
            self.url + path, content=content, headers={"content-type": "application/json", **named}
        )

    @asynccontextmanager
    async def streaming(
        self, body: Mapping[str, Any], tenant: str
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Open a chat stream, and give what comes of it after its first bytes."""
        url, headers = f"{self.url}/v1/chat/completions", {"x-tenant-id": tenant}
        async with self.http.stream("POST", url, json=body, headers=headers) as reply:
            assert reply.status_code == 200
            received = reply.aiter_raw()
            await anext(received)
            yield received

    async def rest(self, received: AsyncIterator[bytes]) -> bytes:
        """Read a stream to its end."""
        return b"".join([part async for part in received])

    async def requests(self, engine: str) -> list[dict[str, Any]]:
        page = await self.http.get(f"http://{engine}/_emulator/requests")
        return [
            each
            for each in page.json()["requests"]
            if each["method"] == "POST" and each["path"].startswith("/v1/")
        ]

    async def hear_engines(self) -> None:
        """Note what callers said that came by clients of their own."""
        for engine in self.plan.engines:
            with contextlib.suppress(httpx.TransportError):  # one that a test has stopped
                for each in await self.requests(engine):
                    self.confidences.note(base64.b64decode(each["body_base64"] or ""))

    async def received(self) -> list[Received]:
        """Return the generating calls that the engines got since the last `reset`."""
        return [
            Received(
                {name.lower(): value for name, value in each["headers"]},
                each["body_length"],
                each["body_sha256"],
                base64.b64decode(each["body_base64"] or ""),
            )
            for engine in self.plan.engines
            for each in (await self.requests(engine))[self.seen.get(engine, 0) :]
        ]

    async def metrics(self) -> Samples:
        return Samples((await self.http.get(self.plan.metrics_url)).text)

    async def envoy(self, stat: str) -> int:
        """Return one of Envoy's own counters or gauges; 0 where it has not been needed yet."""
        admin = f"http://{self.plan.config.envoy.admin}/stats"
        page = await self.http.get(admin, params={"filter": f"^{stat}$", "format": "json"})
        return sum(int(each["value"]) for each in page.json()["stats"] if "value" in each)

    async def ended(self) -> dict[str, int]:
        """Return how many exchanges have ended since the last `reset`, by outcome."""
        seen = await self.metrics()
        grown = {
            each.value: int(self.grown(seen, "exchanges_ended_total", outcome=each.value))
            for each in Outcome
        }
        return {outcome: count for outcome, count in grown.items() if count}

    def grown(self, seen: Samples, name: str, **labels: str) -> float:
        """Return by how much a counter has grown since the last `reset`."""
        return seen.sum(name, **labels) - self.before.sum(name, **labels)

    async def until(
        self, wanted: Callable[[Samples], bool], what: str, seconds: float = 10
    ) -> None:
        """Wait until the metrics are as wanted: by state, not by time."""
        seen = Samples("")
        try:
            async with asyncio.timeout(seconds):
                while True:
                    seen = await self.metrics()
                    if wanted(seen):
                        return
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise AssertionError(f"never: {what}; the metrics are\n{seen}") from None

    async def until_envoy(self, stat: str, wanted: Callable[[int], bool]) -> None:
        """Wait until one of Envoy's own counters or gauges is as wanted."""
        await eventually(lambda: self._is(stat, wanted), stat)

    async def _is(self, stat: str, wanted: Callable[[int], bool]) -> bool:
        return wanted(await self.envoy(stat))

    async def show_usage(self, used: float) -> None:
        """Let every engine report this KV usage, and wait until Tidegate has seen it."""
        for engine in self.engines:
            engine.faults = replace(engine.faults, kv_usage=used)
        await self.until(
            lambda seen: all(
                seen.of("endpoint_kv_usage", pool="*", endpoint=each) == pytest.approx(used)
                for each in self.plan.engines
            ),
            f"a usage of {used}",
        )

    async def idle(self) -> None:
        """Wait until nothing is in flight, neither in the books nor in an engine."""
        await self.until(lambda seen: seen.of("in_flight", pool="*") == 0, "nothing in flight")
        await eventually(lambda: all(each.engine.idle for each in self.engines), "idle engines")

    async def settled(self) -> None:
        """Wait until nothing is in flight and Envoy has told the end of all that was admitted."""
        await self.idle()
        await self.until(
            lambda seen: (
                seen.sum("decisions_total", verdict="admit") == seen.sum("exchanges_ended_total")
            ),
            "an end for each exchange",
        )

    async def reset(self) -> None:
        """Make a shared stand as good as new: no faults, nothing in flight, all classes open."""
        for engine in self.engines:
            engine.faults = Faults()
        await self.settled()
        await self.until(
            lambda seen: (
                all(seen.of("class_closed", pool="*", class_=each) == 0 for each in CLASSES)
                and all(self.state(seen, each) == "fresh" for each in self.plan.engines)
            ),
            "open classes and fresh readings",
        )
        self.seen = {each: len(await self.requests(each)) for each in self.plan.engines}
        self.before = await self.metrics()

    def state(self, seen: Samples, endpoint: str) -> str:
        """Return how far the reading of an endpoint is trusted; right after a start none is listed."""
        states = ("fresh", "stale", "unknown")
        named = {
            each: seen.of("endpoint_state", pool="*", endpoint=endpoint, state=each)
            for each in states
        }
        return next((each for each, value in named.items() if value == 1), "unlisted")

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a process of the stand."""
        os.killpg(self.children[name].process.pid, number)

    async def kill(self, name: str) -> None:
        """Kill a process of the stand as the kernel would."""
        self.signal(name, signal.SIGKILL)
        await self.children[name].process.wait()

    async def restart(self) -> None:
        """Start Tidegate anew on the addresses of the one that has ended."""
        command, directory = self.plan.serve_command(), self.plan.directory
        self.children["tidegate"] = await self.stack.enter_async_context(
            child("tidegate-again", command, directory)
        )
        await self.until_ready(True)
        await self.until(
            lambda seen: all(self.state(seen, each) == "fresh" for each in self.plan.engines),
            "fresh readings",
        )

    async def until_ready(self, wanted: bool) -> None:
        """Wait until Tidegate calls itself ready, or no longer does."""

        async def is_wanted() -> bool:
            return await self.ready() is wanted

        await eventually(is_wanted, f"readiness {wanted}")

    async def ready(self) -> bool:
        """Say whether Tidegate calls itself ready."""
        try:
            page = await self.http.get(f"http://{self.plan.config.listen.http}/readyz")
        except httpx.TransportError:
            return False
        return page.status_code == 200


@asynccontextmanager
async def open_stand(
    more: str = "", *, engines: int = 2, engine: EngineConfig | None = None
) -> AsyncIterator[Stand]:
    """Run a stand.

    Args:
        more: configuration; what it says replaces the whole key of `CONFIG`.
        engines: how many engines to emulate in this process; 0: two in processes of their own.
        engine: their size, policy and speed.
    """
    # A socket's path must be short, and pytest's folders are not.
    with tempfile.TemporaryDirectory(prefix="tidegate-") as short:
        async with _started(Path(short), more, engines, engine) as stand:
            yield stand
            await stand.hear_engines()
            with contextlib.suppress(httpx.TransportError):  # a test has killed it
                page = (await stand.http.get(stand.plan.metrics_url)).content
                (Path(short) / "metrics.txt").write_bytes(page)
                assert Samples(page.decode()).sum("faults_total") == 0, "of our own code"
        stand.confidences.assert_kept(Path(short))


@asynccontextmanager
async def collecting(file: Path) -> AsyncIterator[str]:
    """Take spans (OTLP, JSON) and write them down, a request a line; give the URL."""

    async def take(request: web.Request) -> web.Response:
        with file.open("ab") as out:
            out.write(await request.read() + b"\n")
        return web.Response()

    async with answering("POST", "/v1/traces", take) as address:
        yield f"http://{address}/v1/traces"


@asynccontextmanager
async def _started(
    short: Path, more: str, engines: int, engine: EngineConfig | None
) -> AsyncIterator[Stand]:
    options = EmulatorOptions(
        model="qwen", engine=engine or EngineConfig(policy=Policy.PRIORITY), keep_requests=4096
    )
    async with AsyncExitStack() as stack:
        emulators = [await stack.enter_async_context(Emulator(options)) for _ in range(engines)]
        stack.enter_context(patch.dict(os.environ, TIDEGATE_LOG_LEVEL="debug"))
        config = short / "config.yaml"
        collector = await stack.enter_async_context(collecting(short / "traces.jsonl"))
        settings = yaml.safe_load(CONFIG) | {"tracing": {"endpoint": collector, "ratio": 1}}
        settings |= yaml.safe_load(more) or {}
        config.write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
        addresses = tuple(f"127.0.0.1:{each.port}" for each in emulators)
        plan = make_plan(short, port=0, engines=addresses, config=config)
        children = await stack.enter_async_context(running(plan))
        confidences = Confidences()
        http = await stack.enter_async_context(
            httpx.AsyncClient(
                timeout=30, headers=SECRETS, event_hooks={"request": [confidences.hear]}
            )
        )
        named = {each.name: each for each in children}
        stand = Stand(plan, emulators, named, http, stack, confidences)
        await stand.reset()
        yield stand


OpenStand = Callable[..., AbstractAsyncContextManager[Stand]]
StandMaker = Callable[..., Awaitable[Stand]]


@pytest.fixture(scope="session")
def opened() -> OpenStand:
    """Give `open_stand`, for stands that a whole module shares."""
    return open_stand


@pytest_asyncio.fixture(loop_scope="module")
async def stand_with() -> AsyncIterator[StandMaker]:
    """Start a stand for one test: ``await stand_with(more_yaml, engines=2)``."""
    async with AsyncExitStack() as stack:

        async def start(
            more: str = "", *, engines: int = 2, engine: EngineConfig | None = None
        ) -> Stand:
            return await stack.enter_async_context(open_stand(more, engines=engines, engine=engine))

        yield start


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared() -> AsyncIterator[Stand]:
    """A stand as configured above, for a whole module; a module may have another one instead."""
    async with open_stand() as stand:
        yield stand


@pytest_asyncio.fixture(loop_scope="module")
async def stand(shared: Stand) -> Stand:
    """The module's stand, as good as new."""
    await shared.reset()
    return shared
