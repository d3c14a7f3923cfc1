"""The drill in real time: what is sent, what is made of the answers, what is set up; without Envoy."""

from __future__ import annotations

import asyncio
import json
import math
from collections import Counter
from pathlib import Path

import pytest
import yaml

from extproc.sim.drill.history import End, Record
from extproc.sim.drill.policy import Offer
from extproc.sim.drill.setting import Setting
from extproc.sim.drill.workload import Call
from extproc.sim.emulator import Emulator, EmulatorOptions
from extproc.sim.emulator.faults import Faults
from extproc.sim.emulator.requests import Endpoint, read_call
from extproc.sim.loadgen.http_client import Answer, Client
from extproc.stand.real.calls import Writer
from extproc.stand.real.load import Seen, Sender
from extproc.stand.real.measures import Measures, measure, page
from extproc.stand.real.stage import plan_for

SETTING = Setting(warm_up=0.0, measured=10.0, tail=0.0)


def call(number: int = 0, *, at: float = 0.0, rank: int = 0, prompt: int = 100) -> Call:
    return Call(str(number), at, rank, f"P{rank}-0", "chat", prompt, 7, 512)


def test_an_emulated_engine_reads_the_prompt_and_hears_the_length_that_no_gateway_sees() -> None:
    writer = Writer("tiny", emulated=True, seed=1)

    read = read_call(Endpoint.CHAT, writer.body(call()), model="tiny", max_model_len=8192)
    assert (read.prompt_tokens, read.max_tokens, read.stream) == (100, 512, True)
    assert writer.headers(call()) == (
        ("x-tenant-id", "P0-0"),
        ("x-emulator-output-tokens", "7"),
    )


def test_a_real_engine_is_told_to_generate_as_much() -> None:
    writer = Writer("tiny", emulated=False, seed=1)

    fields = json.loads(writer.body(call()))
    assert (fields["max_tokens"], fields["ignore_eos"]) == (7, True)
    assert writer.headers(call()) == (("x-tenant-id", "P0-0"),)


def test_no_two_prompts_begin_alike() -> None:
    writer = Writer("tiny", emulated=True, seed=1)
    texts = [json.loads(writer.body(call(n)))["messages"][0]["content"] for n in (1, 2)]

    assert texts[0][:2] != texts[1][:2]


async def test_calls_are_played_when_they_are_due_and_kept_with_their_times() -> None:
    loop = asyncio.get_running_loop()
    async with (
        Emulator(EmulatorOptions(model="tiny")) as engine,
        Client(engine.url, clock=loop.time) as client,
    ):
        sender = Sender(client, Writer("tiny", emulated=True, seed=1), SETTING)
        every = await sender.play([call(0), call(1, at=0.05)], patience=30)

    for seen in every:
        record = seen.record
        assert (record.end, seen.error, record.counts) == (End.COMPLETED, None, True)
        assert record.call.at <= record.sent_at < record.first_at < record.ended_at
        assert 0 < seen.pause < record.ended_at - record.first_at


async def test_what_is_not_answered_is_given_up() -> None:
    clock = asyncio.get_running_loop().time
    async with (
        Emulator(EmulatorOptions(model="tiny", faults=Faults(latency=60.0))) as engine,
        Client(engine.url, clock=clock) as client,
    ):
        sender = Sender(client, Writer("tiny", emulated=True, seed=1), SETTING)
        (seen,) = await sender.play([call()], patience=0.05)

    assert (seen.record.end, seen.error) == (End.UNFINISHED, "no answer")


@pytest.mark.parametrize(
    ("answer", "end", "error"),
    [
        (Answer(200, b'{"id":"chatcmpl-1"', 1, 2, None, b"[DONE]\n\n"), End.COMPLETED, None),
        (Answer(200, b'{"id":"chatcmpl-promo-shedded-1"', 1, 2, None, b""), End.SHED, None),
        (Answer(200, b"", 1, 2, None, b'"load_shedding_fallback"} [DONE]'), End.EVICTED, None),
        (Answer(200, b"", 1, 2, None, b"half"), End.ENGINE_ERROR, "the stream is not whole"),
        (Answer(503, b"", 1, 2), End.ENGINE_ERROR, "HTTP 503"),
    ],
)
async def test_how_an_answer_ended(answer: Answer, end: End, error: str | None) -> None:
    class Canned(Client):
        def send(self, head: bytes, body: bytes, done: object) -> None:
            done(answer)  # type: ignore[operator]

    client = Canned("http://127.0.0.1:1", clock=lambda: 0.0)
    sender = Sender(client, Writer("tiny", emulated=True, seed=1), SETTING)
    (seen,) = await sender.play([call()], patience=1)

    assert (seen.record.end, seen.error) == (end, error)


def seen(rank: int, end: End, first: float = math.inf, ended: float = math.inf) -> Seen:
    made = call(rank=rank)
    offer = Offer("x", rank, made.tenant, "chat", 100, 512)
    record = Record(made, offer, 0, counts=True, seen=0, end=end, first_at=first, ended_at=ended)
    record.sent_at = math.inf if end is End.SHED else 0.0
    return Seen(record, late=0.001, pause=0.25)


def measured() -> Measures:
    return measure(
        [seen(0, End.COMPLETED, 1.0, 1.3), seen(0, End.COMPLETED, 3.0, 3.3), seen(2, End.SHED)],
        SETTING,
    )


def test_shares_are_of_what_was_offered_and_percentiles_of_what_was_answered() -> None:
    made = measured()
    first, _, last = made.classes

    assert (first.offered, first.in_time, first.shed) == (2, 0.5, 0.0)
    assert first.first == (1.0, 3.0)
    assert first.token == pytest.approx((0.05, 0.05))
    assert (last.in_time, last.shed) == (0.0, 1.0)
    assert (made.goodput, made.admitted, made.late) == (0.8, 0.5, 0.001)


def test_the_page_shows_both_and_how_far_the_model_is_off() -> None:
    real = measured()
    text = page("balanced, 3×.", {"tidegate": real}, {"tidegate": real})

    assert "| tidegate | P0 | 2 | 50.0 % | 0.0 % | 1.00 / 3.00 | 50 / 50 | 250 / 250 |" in text
    assert "- tidegate: 1 % of the calls left more than 1.0 ms late; failed: none." in text
    assert "| tidegate | goodput | 0.8 / 0.8 | +0.0 % |" in text
    real.errors.update(Counter({"HTTP 503": 2}))
    assert "failed: 2 × HTTP 503" in page("", {"tidegate": real}, {})


def test_what_is_set_up_for_each_controller(tmp_path: Path) -> None:
    ours = plan_for("tidegate", SETTING, tmp_path)
    (pool,) = ours.config.pools.values()
    assert (pool.balance, pool.scheduling_policy, pool.max_concurrency) == ("pick", "priority", 256)
    assert ours.config.tenants["P1-3"].class_ == "P1"
    assert ours.config.classes["P0"].max_wait == 10.0
    command = ours.emulator_command(1)
    assert command[command.index("--blocks") + 1] == "2048"
    assert len(ours.emulated) == 2

    plain = plan_for("watermark", SETTING, tmp_path)
    assert {each.max_wait for each in plain.config.classes.values()} == {0.0}
    assert yaml.safe_load(plain.text)["pools"]["*"]["balance"] == "envoy"
    assert '{"metrics": "unsized"}' in plain.engine_options
    none = plan_for("none", SETTING, tmp_path).engine_options
    assert none[none.index("--scheduling-policy") + 1] == "fcfs"

    with pytest.raises(ValueError, match="no controller watermark here: use none, tidegate"):
        plan_for("watermark", SETTING, tmp_path, ("127.0.0.1:1",))
