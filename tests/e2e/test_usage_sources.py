"""The token usage is the same whoever reads it: Envoy's filters, or Tidegate; and so is the answer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio

from extproc.sim.emulator.oddities import Oddity

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]

TOKENS = 12
HELLO = [{"role": "user", "content": "hello"}]
CALLS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HELLO, "max_tokens": TOKENS},
    "/v1/completions": {"prompt": "hello", "max_tokens": TOKENS},
    "/v1/responses": {"input": "hello", "max_output_tokens": TOKENS},
    "/v1/messages": {"messages": HELLO, "max_tokens": TOKENS},
}
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
ASKED = {"stream_options": {"include_usage": True}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stands(opened: Any) -> AsyncIterator[list[Any]]:
    async with (
        opened(engines=1) as envoy,
        opened("envoy: {usage_source: ext_proc}", engines=1) as ext_proc,
    ):
        yield [envoy, ext_proc]


async def told(
    stands: list[Any], path: str, *oddities: Oddity, **more: Any
) -> list[tuple[bytes, float, float]]:
    """Return what each stand's client got, and the tokens of prompt and output that were counted."""
    found = []
    for stand in stands:
        (engine,) = stand.engines
        await stand.reset()
        engine.faults = replace(engine.faults, stream=oddities)
        call = {"model": "qwen", "ignore_eos": True, **CALLS[path], **more}
        reply = await stand.post(call, path, x_tenant_id="service", x_request_id="same")
        assert reply.status_code == 200
        await stand.settled()
        seen = await stand.metrics()
        counts = [
            stand.grown(seen, "tenant_tokens_total", tenant="service", kind=kind)
            for kind in ("prompt", "output")
        ]
        found.append((reply.content, *counts))
    return found


def alike(found: list[tuple[bytes, float, float]], output: int = TOKENS) -> bytes:
    """Prove that both stands say the same, and return what the client got."""
    (body, *counts), (other, *others) = found
    assert counts == others
    assert counts[0] > 0
    assert counts[1] == output
    # Ids and times differ from one engine to the next; nothing else may.
    assert [line[:6] for line in body.splitlines()] == [line[:6] for line in other.splitlines()]
    assert body.count(b"usage") == other.count(b"usage")
    return body


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("path", CALLS)
async def test_both_read_the_same(stands: list[Any], path: str, stream: bool) -> None:
    body = alike(await told(stands, path, stream=stream))

    if stream and path in (CHAT, COMPLETIONS):
        assert b"usage" not in body, "the client did not ask for it"
        assert body.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_who_asks_for_the_usage_gets_it(stands: list[Any], path: str) -> None:
    body = alike(await told(stands, path, stream=True, **ASKED))

    assert body.count(b'"usage"') == 1


async def test_several_texts_are_counted_together(stands: list[Any]) -> None:
    alike(await told(stands, CHAT, stream=True, n=3), output=3 * TOKENS)


@pytest.mark.parametrize("oddity", [each for each in Oddity if each is not Oddity.TOOL_CALL])
async def test_both_read_the_same_of_odd_streams(stands: list[Any], oddity: Oddity) -> None:
    alike(await told(stands, CHAT, oddity, stream=True, **ASKED))


async def test_what_an_engine_compresses_all_the_same_is_read_and_passes_as_it_is(
    stands: list[Any],
) -> None:
    """It is asked not to; and the chunk that we asked for cannot be left out of gzip."""
    body = alike(await told(stands, CHAT, Oddity.GZIP, stream=True))

    assert body.count(b'"usage"') == 1
    for stand in stands:
        (received,) = await stand.received()
        assert received.headers["accept-encoding"] == "identity"
