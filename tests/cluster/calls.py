"""Load on a cluster, and what became of every single call."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count

import aiohttp

from tests.cluster.stand import CLASSES, Cluster, chat

DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True)
class Call:
    """What became of a call.

    Attributes:
        tenant: whose it was.
        status: of the answer; 0 where there was none.
        verdict, reason: as the answer's headers say, or "": nobody has judged it.
        tokens: usage that a whole answer of an engine has told, else 0.
        problem: what went wrong with the connection, or "".
    """

    tenant: str
    status: int
    verdict: str = ""
    reason: str = ""
    tokens: int = 0
    problem: str = ""


@dataclass
class Calls:
    """All calls of a load."""

    each: list[Call] = field(default_factory=list)

    def of(self, tenant: str) -> list[Call]:
        return [call for call in self.each if call.tenant == tenant]

    @property
    def answered(self) -> list[Call]:
        """Return those that were let in and answered by an engine, as a whole."""
        return [call for call in self.each if call.verdict == "admit" and call.tokens]

    @property
    def unjudged(self) -> list[Call]:
        """Return those that got an answer, but no verdict."""
        return [call for call in self.each if call.status and not call.verdict]

    @property
    def failed(self) -> list[Call]:
        """Return those whose clients saw an error."""
        return [call for call in self.each if call.status != 200 or call.problem]

    def outcomes(self, tenant: str) -> Counter[tuple[int, str, str]]:
        """Return how often each status, verdict and reason came."""
        return Counter((call.status, call.verdict, call.reason) for call in self.of(tenant))


async def load(
    cluster: Cluster,
    *,
    rate: float,
    seconds: float,
    tokens: int = 8,
    tenants: Iterable[str] = CLASSES,
    envoys: Iterable[int] | None = None,
    streams: float = 0.5,
    aborts: float = 0.0,
    seed: int = 7,
    calls: Calls | None = None,
) -> Calls:
    """Send calls of all tenants at a steady rate, open loop, through all Envoys in turn.

    Args:
        cluster: where.
        rate: calls a second.
        seconds: for how long.
        tokens: of each answer.
        tenants: who sends, in turn.
        envoys: through which; default all.
        streams: share of calls that stream.
        aborts: share of calls whose clients leave at some moment.
        seed: of what is random.
        calls: where they are noted; a new list by default.
    """
    rng, noted = random.Random(seed), calls or Calls()
    names, through = list(tenants), list(envoys or range(1, len(cluster.urls) + 1))
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with asyncio.TaskGroup() as tasks:
        for number in count():
            due = began + number / rate
            if due >= began + seconds:
                break
            await asyncio.sleep(max(0.0, due - loop.time()))
            body = chat(tokens)
            if rng.random() < streams:
                body |= {"stream": True, "stream_options": {"include_usage": True}}
            patience = rng.uniform(0.0, 0.3) if rng.random() < aborts else None
            url = cluster.urls[through[number % len(through)] - 1]
            tenant = names[(number // len(through)) % len(names)]
            tasks.create_task(_send(cluster, url, tenant, body, patience, noted))
    return noted


async def _send(
    cluster: Cluster,
    url: str,
    tenant: str,
    body: dict[str, object],
    patience: float | None,
    noted: Calls,
) -> None:
    status, verdict, reason, tokens, problem = 0, "", "", 0, ""
    try:
        async with (
            asyncio.timeout(patience),
            cluster.http.post(
                f"{url}/v1/chat/completions", json=body, headers={"x-tenant-id": tenant}
            ) as reply,
        ):
            status = reply.status
            verdict = reply.headers.get("x-tidegate-verdict", "")
            reason = reply.headers.get("x-tidegate-reason", "")
            tokens = _usage(await reply.read(), stream="stream" in body)
    except TimeoutError:
        problem = "left" if patience is not None else "timeout"
    except aiohttp.ClientError as error:
        problem = type(error).__name__
    noted.each.append(Call(tenant, status, verdict, reason, tokens, problem))


def _usage(body: bytes, *, stream: bool) -> int:
    """Return the tokens that a whole answer tells; 0 of one that is cut or no engine's."""
    if not stream:
        found = json.loads(body).get("usage") if body[:1] == b"{" else None
        return int(found["total_tokens"]) if found else 0
    if not body.endswith(DONE):
        return 0
    told = [json.loads(line[6:]) for line in body.splitlines() if line.startswith(b"data: {")]
    usages = [each["usage"] for each in told if each.get("usage")]
    return int(usages[-1]["total_tokens"]) if usages else 0
