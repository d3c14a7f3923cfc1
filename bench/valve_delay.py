"""``python -m bench.valve_delay``: from a share that Tidegate publishes to Envoy's first refusal by it.

Rules this module keeps:

* Runtime discovery is Tidegate's own, served by this process, so one clock sees both ends. There is no
  processor, and Envoy fails closed: what is refused by the valve is a 200, everything else is not.
* Calls of the class go on, one after the other on each of a few connections, so what is measured has in it
  the wait for the next call and that call's own time; both are said.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import aiohttp
import typer
import yaml

from bench.measure import BODY_BYTES, chat_body
from bench.stand import SHED, TENANT_HEADER, configuration
from extproc import contract
from extproc.config import parse
from extproc.core.reasons import Reason
from extproc.edge import server
from extproc.edge.runtime_discovery import RuntimeDiscovery
from extproc.envoyconf.binary import find_envoy
from extproc.envoyconf.bootstrap import bootstrap
from extproc.stand.children import child
from extproc.stand.ports import free_port

CONNECTIONS = 2
_PATIENCE = 10.0
_PAUSE = 0.1


class Calls:
    """Calls of the closed class that go on until cancelled; knows when each kind of answer came."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session, self._url = session, url
        self._body = chat_body(BODY_BYTES)
        self._answered = asyncio.Event()
        self._refused = False
        self.at = 0.0
        self.seconds: list[float] = []

    async def go_on(self) -> None:
        """Call again and again."""
        headers = {TENANT_HEADER: SHED, "content-type": "application/json"}
        while True:
            began = time.monotonic()
            async with self._session.post(self._url, data=self._body, headers=headers) as reply:
                await reply.read()
            self.at = time.monotonic()
            self.seconds.append(self.at - began)
            self._refused = reply.status == 200
            self._answered.set()

    async def until(self, *, refused: bool) -> float:
        """Return when the next answer of that kind came."""
        async with asyncio.timeout(_PATIENCE):
            while True:
                self._answered.clear()
                await self._answered.wait()
                if self._refused is refused:
                    return self.at


def main(rounds: Annotated[int, typer.Option(min=10)] = 200) -> None:
    """Measure how long Envoy takes to do as it is told."""
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as directory:
        delays, calls = asyncio.run(_run(Path(directory), rounds))
    sys.stdout.write(f"flag to first refusal, {rounds} times: {told(delays)}\n")
    sys.stdout.write(f"a call itself, {len(calls)} times: {told(calls)}\n")


async def _run(directory: Path, rounds: int) -> tuple[list[float], list[float]]:
    settings = yaml.safe_load(configuration(directory / "t.sock", free_port()))
    settings["envoy"] |= {"valve": {"first": None}, "admin": f"127.0.0.1:{free_port()}"}
    config = parse(yaml.safe_dump(settings))
    file, discovery = directory / "envoy.yaml", RuntimeDiscovery()
    file.write_text(bootstrap(config), encoding="utf-8")
    serving, _ = server.build([discovery.handler()], config.listen.processor, max_body=1 << 20)
    await serving.start()
    command = [
        str(find_envoy()),
        "-c",
        str(file),
        "--log-level",
        "critical",
        "--disable-hot-restart",
    ]
    key = contract.valve_key("P2", Reason.KV_WATERMARK, "*")
    url = f"http://{config.envoy.listener}/v1/chat/completions"
    async with (
        child("envoy", [*command, "--concurrency", "2"], directory),
        aiohttp.ClientSession() as session,
    ):
        await _until_up(discovery, session, url)
        calls, delays = Calls(session, url), []
        going = [asyncio.ensure_future(calls.go_on()) for _ in range(CONNECTIONS)]
        try:
            for _ in range(rounds):
                published = time.monotonic()
                discovery.publish({key: 1.0})
                delays.append(await calls.until(refused=True) - published)
                await asyncio.sleep(_PAUSE)
                discovery.publish({})
                await calls.until(refused=False)
                await asyncio.sleep(_PAUSE)
        finally:
            for each in going:
                each.cancel()
            await asyncio.gather(*going, return_exceptions=True)
    await serving.stop(0)
    return delays, calls.seconds


async def _until_up(discovery: RuntimeDiscovery, session: aiohttp.ClientSession, url: str) -> None:
    async with asyncio.timeout(_PATIENCE):
        while True:
            await asyncio.sleep(0.05)
            try:
                async with session.post(url, data=b"{}") as reply:
                    await reply.read()
            except aiohttp.ClientConnectionError:
                continue
            if discovery.streams:
                return


def told(seconds: list[float]) -> str:
    """Return what seconds come to, in milliseconds."""
    each = sorted(value * 1e3 for value in seconds)
    p99 = each[min(len(each) - 1, round(0.99 * len(each)))]
    return f"p50 {each[len(each) // 2]:.1f} ms, p99 {p99:.1f} ms, max {each[-1]:.1f} ms"


if __name__ == "__main__":
    typer.run(main)
