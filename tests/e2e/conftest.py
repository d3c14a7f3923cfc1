"""The whole: a real Envoy, Tidegate in its own process, emulated engines that tests can break."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from extproc.sim.emulator import Emulator, EmulatorOptions
from extproc.sim.engine_config import EngineConfig, Policy
from extproc.stand.children import Child
from extproc.stand.plan import Plan, make_plan
from extproc.stand.up import running

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


@dataclass(frozen=True)
class Received:
    """A generating call as an engine got it; the body only where it is short."""

    headers: dict[str, str]
    length: int
    sha256: str
    body: bytes


@dataclass
class Stand:
    """A running stand and the hands that tests lay on it."""

    plan: Plan
    engines: list[Emulator]
    children: Mapping[str, Child]
    http: httpx.AsyncClient

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

    async def received(self) -> list[Received]:
        """Return the generating calls that the engines got."""
        found = []
        for engine in self.engines:
            page = await self.http.get(f"{engine.url}/_emulator/requests")
            found += [
                Received(
                    {name.lower(): value for name, value in each["headers"]},
                    each["body_length"],
                    each["body_sha256"],
                    base64.b64decode(each["body_base64"] or ""),
                )
                for each in page.json()["requests"]
                if each["method"] == "POST" and each["path"].startswith("/v1/")
            ]
        return found

    async def metrics(self) -> Samples:
        return Samples((await self.http.get(self.plan.metrics_url)).text)

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
        """Wait until nothing is in flight."""
        await self.until(lambda seen: seen.of("in_flight", pool="*") == 0, "nothing in flight")

    def kill(self, name: str) -> None:
        """Kill a process of the stand as the kernel would."""
        os.killpg(self.children[name].process.pid, signal.SIGKILL)


StandMaker = Callable[..., Awaitable[Stand]]


@pytest.fixture
async def stand_with(tmp_path: Path) -> AsyncIterator[StandMaker]:
    """Start a stand: ``await stand_with(more_yaml, engines=2, engine=EngineConfig(...))``."""
    async with AsyncExitStack() as stack:

        async def start(
            more: str = "", *, engines: int = 2, engine: EngineConfig | None = None
        ) -> Stand:
            options = EmulatorOptions(
                model="qwen", engine=engine or EngineConfig(policy=Policy.PRIORITY)
            )
            emulators = [await stack.enter_async_context(Emulator(options)) for _ in range(engines)]
            config = tmp_path / "config.yaml"
            config.write_text(CONFIG + more, encoding="utf-8")
            # A socket's path must be short, and pytest's folders are not.
            short = stack.enter_context(tempfile.TemporaryDirectory(prefix="tidegate-"))
            plan = make_plan(
                Path(short),
                port=0,
                engines=tuple(f"127.0.0.1:{each.port}" for each in emulators),
                config=config,
            )
            children = await stack.enter_async_context(running(plan))
            http = await stack.enter_async_context(httpx.AsyncClient(timeout=30))
            stand = Stand(plan, emulators, {each.name: each for each in children}, http)
            await stand.until(
                lambda seen: seen.of("free_ratio_observed", pool="*") is not None, "a first reading"
            )
            return stand

        yield start


@pytest.fixture
async def stand(stand_with: StandMaker) -> Stand:
    """A stand as configured above, with two engines."""
    return await stand_with()
