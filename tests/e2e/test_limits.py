"""Plans through the real OpenAI client: what it reads, raises and retries, and what that costs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
import pytest_asyncio

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]

PLANS = """\
tenants:
  pay:       {class: P0, plan: paced}
  service:   {class: P1, plan: metered}
  marketing: {class: P2}
  anonymous: {class: P2}
plans:
  paced:   {requests_per_minute: 30, tokens_per_minute: 100000, burst: 1.0}
  metered: {quota: {tokens: 100}}
"""
HELLO: Any = [{"role": "user", "content": "hello"}]
NAMES = [
    f"x-ratelimit-{what}-{kind}"
    for kind in ("requests", "tokens")
    for what in ("limit", "remaining", "reset")
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(opened: Any) -> AsyncIterator[Any]:
    async with opened(PLANS) as stand:
        yield stand


def client(stand: Any, tenant: str, retries: int = 0) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        base_url=f"{stand.url}/v1",
        api_key="sk-canary-0c9b4e",
        default_headers={"x-tenant-id": tenant},
        max_retries=retries,
    )


async def test_clients_read_what_is_left_and_come_back_when_told(stand: Any) -> None:
    async with client(stand, "pay") as paying, client(stand, "pay", retries=2) as patient:
        ask = paying.chat.completions.with_raw_response.create
        first = await ask(model="qwen", messages=HELLO, max_tokens=8)
        assert [first.headers[name] for name in NAMES[:2]] == ["30", "29"]
        # Two seconds, less what it took to say so.
        assert first.headers[NAMES[2]] == "2s" or first.headers[NAMES[2]].startswith("1.9")
        assert first.headers["x-ratelimit-limit-tokens"] == "100000"
        assert 99_900 < int(first.headers["x-ratelimit-remaining-tokens"]) < 100_000

        async def ask_until_refused() -> None:
            for _ in range(200):
                await ask(model="qwen", messages=HELLO, max_tokens=8)

        with pytest.raises(openai.RateLimitError) as raised:
            await ask_until_refused()
        error, told = raised.value, raised.value.response.headers
        assert (error.status_code, error.code) == (429, "rate_limit_exceeded")
        assert (told["x-tidegate-reason"], told["retry-after"] in ("1", "2")) == (
            "rate_limited",
            True,
        )
        assert told["x-ratelimit-remaining-requests"] == "0"
        assert [name in told for name in NAMES] == [True] * 6

        await asyncio.sleep(int(told["retry-after-ms"]) / 1000)
        again = await ask(model="qwen", messages=HELLO, max_tokens=8)
        assert again.headers["x-ratelimit-remaining-requests"] == "0"
        # As people use it: the library waits as told, and nobody notices.
        completion = await patient.chat.completions.create(
            model="qwen", messages=HELLO, max_tokens=8
        )
        assert completion.choices[0].finish_reason in ("stop", "length")


async def test_what_was_held_and_not_used_comes_back_and_an_empty_quota_is_not_retried(
    stand: Any,
) -> None:
    async with client(stand, "service", retries=2) as metered:
        ask = metered.chat.completions.create
        spent = []
        for _ in range(4):  # four holds would be more than there is
            completion = await ask(model="qwen", messages=HELLO, max_tokens=8)
            assert completion.usage is not None
            spent.append(completion.usage.total_tokens)
            await stand.settled()
        assert sum(spent) < 100
        before = await stand.envoy("http.tidegate.downstream_rq_total")
        with pytest.raises(openai.RateLimitError) as raised:
            await ask(model="qwen", messages=HELLO, max_tokens=200)
        assert raised.value.code == "insufficient_quota"
        assert await stand.envoy("http.tidegate.downstream_rq_total") - before == 1, "no retry"


async def test_tenants_without_plan_are_told_nothing(stand: Any) -> None:
    async with client(stand, "marketing") as free:
        reply = await free.chat.completions.with_raw_response.create(
            model="qwen", messages=HELLO, max_tokens=8
        )
    assert not any(name in reply.headers for name in NAMES)
