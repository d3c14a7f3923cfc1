"""The flood valve, whole: a flood is answered by Envoy, payments go on, and it opens when we are gone."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anthropic
import openai
import pytest
import pytest_asyncio

from extproc.control.client import Access, connect
from extproc.control.pb import modes_pb2, modes_pb2_grpc

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]

CHAT = {"model": "qwen", "max_tokens": 2, "messages": [{"role": "user", "content": "hello"}]}
CONFIG = "envoy: {valve: {through: 10, first: null}}"
BY_ENVOY = "We are very busy right now: please resend in 15 seconds."
FALLBACK = "load_shedding_fallback"
HELLO: Any = [{"role": "user", "content": "hello"}]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(opened: Any) -> AsyncIterator[Any]:
    async with opened(CONFIG) as stand:
        yield stand


async def switch(stand: Any, mode: modes_pb2.Mode.ValueType) -> None:
    access = Access(stand.plan.config.listen.control, stand.plan.token)
    async with connect(access) as channel:
        stub = modes_pb2_grpc.ModeServiceStub(channel)
        await stub.SetMode(modes_pb2.SetModeRequest(mode=mode, reason="test"))


class Flood:
    """Marketing's calls, as fast as they are answered; counts the answers by who gave them and why."""

    def __init__(self, stand: Any) -> None:
        self.stand = stand
        self.answers: Counter[tuple[str, str]] = Counter()
        self.first_by_envoy = 0.0

    async def _send(self) -> None:
        while True:
            reply = await self.stand.post(CHAT, x_tenant_id="marketing")
            assert reply.status_code == 200
            reason = reply.headers.get("x-tidegate-reason", "none")
            by_envoy = BY_ENVOY in reply.text
            if by_envoy and not self.first_by_envoy:
                self.first_by_envoy = time.monotonic()
            self.answers["envoy" if by_envoy else "tidegate", reason] += 1

    @contextlib.asynccontextmanager
    async def going_on(self) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(self._send()) for _ in range(4)]
        try:
            yield
        finally:
            for each in tasks:
                each.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            assert [each for each in ended if not isinstance(each, asyncio.CancelledError)] == []

    async def until_shut(self) -> None:
        await self.stand.eventually(lambda: self.answers.total() > 20, "calls")
        already = sum(n for (by, _), n in self.answers.items() if by == "envoy")
        await self.stand.eventually(
            lambda: sum(n for (by, _), n in self.answers.items() if by == "envoy") > already + 20,
            "answers of Envoy's",
        )


@pytest_asyncio.fixture(loop_scope="module")
async def flood(stand: Any) -> AsyncIterator[Flood]:
    """A flood of a class that is closed by mode, under way and shut out."""
    await switch(stand, modes_pb2.MODE_PROTECT)
    flood = Flood(stand)
    try:
        async with flood.going_on():
            await flood.until_shut()
            yield flood
    finally:
        await switch(stand, modes_pb2.MODE_NORMAL)


async def test_payments_are_never_touched_and_others_have_the_modes_reason(
    stand: Any, flood: Flood
) -> None:
    for tenant in ("pay", "service"):
        replies = [await stand.post(CHAT, x_tenant_id=tenant) for _ in range(20)]
        assert {each.headers["x-tidegate-verdict"] for each in replies} == {"admit"}
    assert {reason for _, reason in flood.answers} == {"mode_protect"}


async def until(make: Callable[[], Awaitable[Any]], said: Callable[[Any], str]) -> Any:
    """Call until Envoy answers: a few calls still come to Tidegate."""
    for _ in range(50):
        answer = await make()
        if said(answer) == BY_ENVOY:
            return answer
    raise AssertionError("never answered by Envoy")


async def test_the_openai_client_reads_its_answers(stand: Any, flood: Flood) -> None:
    async with openai.AsyncOpenAI(
        base_url=f"{stand.url}/v1", api_key="k", default_headers={"x-tenant-id": "marketing"},
        max_retries=0,
    ) as client:  # fmt: skip
        chat: Any = client.chat.completions.create
        whole = await until(
            lambda: chat(model="qwen", messages=HELLO), lambda it: it.choices[0].message.content
        )
        assert whole.id.startswith("chatcmpl-promo-shedded-")
        assert (whole.choices[0].finish_reason, whole.usage.total_tokens) == (FALLBACK, 0)
        assert whole.tidegate == {"reason": "mode_protect"}

        async def streamed() -> list[Any]:
            options = {"include_usage": True}
            events = await chat(model="qwen", messages=HELLO, stream=True, stream_options=options)
            return [each async for each in events]

        chunks = await until(
            streamed,
            lambda all_: "".join(
                choice.delta.content or "" for each in all_ for choice in each.choices
            ),
        )
        assert len({each.id for each in chunks}) == 1
        assert chunks[-1].usage.total_tokens == 0

        text = await until(
            lambda: client.completions.create(model="qwen", prompt="hello"),
            lambda it: it.choices[0].text,
        )
        assert text.id.startswith("cmpl-promo-shedded-")
        response = await until(
            lambda: client.responses.create(model="qwen", input="hello"), lambda it: it.output_text
        )
        assert (response.status, response.metadata) == (
            "completed", {"tidegate_reason": "mode_protect"},
        )  # fmt: skip

        async def response_streamed() -> Any:
            async with client.responses.stream(model="qwen", input="hello") as events:
                return await events.get_final_response()

        assert (await until(response_streamed, lambda it: it.output_text)).status == "completed"

        seen_by_envoy = 0
        for _ in range(10):
            with pytest.raises(openai.RateLimitError) as refused:
                await chat(model="qwen", messages=HELLO, response_format={"type": "json_object"})
            assert refused.value.response.headers["x-should-retry"] == "false"
            assert refused.value.code == "mode_protect"
            seen_by_envoy += BY_ENVOY in refused.value.message
        assert seen_by_envoy


async def test_the_anthropic_client_reads_its_answers(stand: Any, flood: Flood) -> None:
    async with anthropic.AsyncAnthropic(
        base_url=stand.url, api_key="k", default_headers={"x-tenant-id": "marketing"}, max_retries=0
    ) as client:
        whole = await until(
            lambda: client.messages.create(model="qwen", max_tokens=3, messages=HELLO),
            lambda it: it.content[0].text,
        )
        assert whole.id.startswith("msg_promo_shedded_")
        assert (whole.stop_reason, whole.usage.output_tokens) == (FALLBACK, 0)

        async def streamed() -> Any:
            async with client.messages.stream(model="qwen", max_tokens=3, messages=HELLO) as events:
                return await events.get_final_message()

        assert (await until(streamed, lambda it: it.content[0].text)).stop_reason == FALLBACK


async def test_a_call_with_a_ticket_comes_to_tidegate(stand: Any, flood: Flood) -> None:
    for _ in range(20):
        reply = await stand.post(CHAT, x_tenant_id="marketing", x_tidegate_ticket="AQ")
        assert BY_ENVOY not in reply.text


async def all_counted(stand: Any) -> None:
    """Wait until nothing more comes of floods that are over: Envoy is asked twice a second."""
    counts = [-1.0, (await stand.metrics()).sum("valve_refused_total")]
    while counts[-1] != counts[-2]:
        await asyncio.sleep(1.2)
        counts.append((await stand.metrics()).sum("valve_refused_total"))


async def test_every_refusal_is_counted_once_and_some_are_told_of(stand: Any) -> None:
    await all_counted(stand)
    await switch(stand, modes_pb2.MODE_PROTECT)
    flood, before = Flood(stand), await stand.metrics()
    log = stand.plan.directory / "decisions.jsonl"
    earlier = len(log.read_text().splitlines())  # other tests have called other APIs

    def told() -> bool:
        lines = [json.loads(each) for each in log.read_text().splitlines()[earlier:]]
        sampled = [each for each in lines if each.get("by_envoy")]
        return bool(sampled) and {
            (each["verdict"], each["reason"], each["tenant"], each["service_class"], each["api"])
            for each in sampled
        } == {("shed", "mode_protect", "marketing", "P2", "chat")}

    try:
        async with flood.going_on():
            await flood.until_shut()
            await stand.eventually(told, "lines of some of them")  # of a few a second
            during = await stand.metrics()
            assert during.of("valve_share", pool="*", class_="P2") > 0.5
            assert during.of("valve_envoys") == 1
    finally:
        await switch(stand, modes_pb2.MODE_NORMAL)
    by_envoy = flood.answers["envoy", "mode_protect"]
    answered = flood.answers.total()
    counts: list[tuple[float, float]] = []
    unheard = 4  # calls under way when the flood was cut off

    async def counted() -> bool:
        seen = await stand.metrics()
        shed = {"verdict": "shed", "class_": "P2"}
        more = seen.sum("decisions_total", **shed) - before.sum("decisions_total", **shed)
        refused = seen.sum("valve_refused_total") - before.sum("valve_refused_total")
        counts.append((more, refused))
        return bool(
            answered <= more <= answered + unheard and by_envoy <= refused <= by_envoy + unheard
        )

    what = f"{answered} refusals counted, {by_envoy} of them Envoy's"
    try:
        await stand.eventually(counted, what)
    except AssertionError:
        raise AssertionError(f"{what}: {counts[0]}, then {counts[-1]}") from None


async def test_it_opens_by_itself_when_we_die(stand_with: Any) -> None:
    stand = await stand_with(CONFIG)
    await switch(stand, modes_pb2.MODE_PROTECT)
    flood = Flood(stand)
    async with flood.going_on():
        await flood.until_shut()
        await stand.kill("tidegate")
        died = time.monotonic()

        async def open_again() -> bool:
            flood.answers.clear()
            await asyncio.sleep(0.2)
            return flood.answers.total() > 0 and {by for by, _ in flood.answers} == {"tidegate"}

        await stand.eventually(open_again, "an open valve", seconds=9)
        assert time.monotonic() - died < 8
        assert {reason for _, reason in flood.answers} == {"none"}
        await stand.restart()
        await flood.until_shut()
