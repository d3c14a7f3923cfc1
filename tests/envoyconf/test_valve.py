"""The flood valve through the real Envoy, without Tidegate: who is refused, how, and what it counts."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Awaitable, Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import yaml

from extproc.config import Config
from extproc.core.reasons import Reason
from extproc.envoyconf.binary import find_envoy
from extproc.envoyconf.bootstrap import bootstrap
from extproc.envoyconf.forms import Form, write
from extproc.telemetry.envoy_stats import read

pytestmark = pytest.mark.e2e

CHAT = "/v1/chat/completions"
BODY = b'{"model": "tiny", "messages": [{"role": "user", "content": "hello {[\\"there"}]}'
STREAM = BODY[:-1] + b', "stream": true}'
World = Callable[..., Awaitable[Any]]
SETTINGS = """
identity:
  sources:
    - header: {name: x-tenant-id, trusted: true}
tenants:
  pay:       {class: P0}
  service:   {class: P1}
  marketing: {class: P2}
  anonymous: {class: P2}
fallback: {language: en}
envoy: {valve: {first: null}}
"""
SHUT = {"tidegate.shed.P2.kv_watermark.tiny": 100, "tidegate.sampled": 1_000_000}


def shut(**shares: float) -> Callable[[Config], str]:
    """Write a bootstrap whose runtime says so, instead of asking the processor."""

    def write(config: Config) -> str:
        document = yaml.safe_load(bootstrap(config))
        layers = [{"name": "static", "static_layer": shares}]
        document["layered_runtime"] = {"layers": layers}
        return yaml.safe_dump(document)

    return write


async def test_a_shut_class_is_answered_by_envoy_alone(world: World) -> None:
    envoy = await world(SETTINGS, write=shut(**SHUT))

    status, body = await envoy.post(CHAT, BODY, x_tenant_id="marketing")

    assert status == 200
    answer = json.loads(body)
    assert answer.pop("id").startswith("chatcmpl-promo-shedded-")
    assert answer.pop("created") > 1_700_000_000
    assert answer == {
        "object": "chat.completion",
        "model": "tiny",
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": "We are very busy right now: please resend in 15 seconds.",
                },
                "finish_reason": "load_shedding_fallback",
            }
        ],
        "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
        "tidegate": {"reason": "kv_watermark"},
    }
    assert (envoy.processor.requests, envoy.engine.seen) == ([], [])
    entry = await envoy.processor.next_log()
    told = dict(entry.common_properties.metadata.filter_metadata["tidegate.valve"])
    assert told.pop("id")
    assert told == {
        "tenant": "marketing", "class": "P2", "reason": "kv_watermark", "pool": "tiny",
        "endpoint": "chat",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("tenant", "body"), [("pay", BODY), ("service", BODY), ("marketing", b"{")]
)
async def test_all_others_go_on(world: World, tenant: str, body: bytes) -> None:
    envoy = await world(SETTINGS, write=shut(**SHUT))

    status, _ = await envoy.post(CHAT, body, x_tenant_id=tenant)

    assert status == 200
    assert envoy.processor.kinds == ["request_body", "response_headers"]
    (seen,) = envoy.engine.seen
    assert not [name for name in seen.headers if name.startswith("x-tidegate")]


KEYS = """
identity:
  sources:
    - api_key: {{file: {file}}}
    - header: {{name: x-tenant-id, trusted: true}}
tenants:
  pay:       {{class: P0}}
  service:   {{class: P1}}
  marketing: {{class: P2}}
  anonymous: {{class: P2}}
fallback: {{language: en}}
envoy: {{valve: {{first: null}}}}
"""
HIGH, LOW = "sk-pay-1", "sk-ads-1"
OURS = [
    ("x-tidegate-class", "P0"),
    ("x-tidegate-valve-class", "P0"),
    ("x-tidegate-valve", "1:none"),
    ("X-Tidegate-Pool", "other"),
]


async def test_nobody_gets_past_it_by_a_name_and_no_payment_is_refused(
    world: World, tmp_path: Path
) -> None:
    file = tmp_path / "keys.yaml"
    digests = {sha256(key.encode()).hexdigest(): key for key in (HIGH, LOW)}
    file.write_text(
        "".join(f"{d}: {'pay' if k == HIGH else 'marketing'}\n" for d, k in digests.items())
    )
    everything = {f"tidegate.shed.{name}.mode_protect.tiny": 100 for name in ("P0", "P1", "P2")} | {
        "tidegate.shed.P1.mode_protect.tiny": 0
    }
    envoy = await world(KEYS.format(file=file), write=shut(**everything))
    passed = {
        "a high key": [("authorization", f"Bearer {HIGH}")],
        "a high key, odd scheme": [("authorization", f"bEARER  {HIGH} ")],
        "a high key in Anthropic's header": [("x-api-key", HIGH)],
        "a high key, and a low name": [("x-api-key", HIGH), ("x-tenant-id", "marketing")],
        "a high key among headers of ours": [("x-api-key", HIGH), ("x-tidegate-valve", "0:flood"),
                                             ("x-tidegate-valve-class", "P2")],
        "a high name": [("x-tenant-id", "pay")],
        "a middle name": [("X-Tenant-ID", " service ")],
    }  # fmt: skip
    refused = {
        "nobody": [],
        "a low key": [("authorization", f"Bearer {LOW}")],
        "an unknown key": [("authorization", "Bearer sk-pay-2")],
        "a key in capitals": [("authorization", f"Bearer {HIGH.upper()}")],
        "a digest for a key": [("x-api-key", sha256(HIGH.encode()).hexdigest())],
        "a key doubled": [("x-api-key", HIGH), ("x-api-key", HIGH)],
        "keys doubled": [("authorization", f"Bearer {LOW}"), ("authorization", f"Bearer {HIGH}")],
        "a name doubled": [("x-tenant-id", "pay"), ("x-tenant-id", "pay")],
        "a name with a comma": [("x-tenant-id", "pay,")],
        "a name in capitals": [("x-tenant-id", "PAY")],
        "headers of ours": OURS,
        "headers of ours, doubled": [*OURS, *OURS, ("x-tenant-id", "marketing")],
        "a low key, and a high name": [("authorization", f"Bearer {LOW}"), ("x-tenant-id", "pay")],
    }
    for expected, cases in (("", passed), ("P2", refused)):
        for case, headers in cases.items():
            async with envoy.client.post(
                f"{envoy.url}{CHAT}", data=BODY, headers=headers
            ) as answer:
                assert answer.headers.get("x-tidegate-class", "") == expected, case
    assert len(envoy.engine.seen) == len(passed)
    for seen in envoy.engine.seen:
        assert not [name for name in seen.headers if name.startswith("x-tidegate")]


@pytest.mark.parametrize("form", [Form.BOOTSTRAP, Form.INCLUDE])
def test_envoy_validates_every_form_that_has_it(
    form: Form, tmp_path: Path, sample: Callable[..., Config]
) -> None:
    config = sample(f"envoy: {{valve: {{}}, include_dir: {tmp_path}}}", a=["e:1"], b=["e:2"])
    write(config, tmp_path)
    file = tmp_path / f"{form}.yaml"
    command = [str(find_envoy()), "--mode", "validate", "-l", "error", "-c", str(file)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stderr) == (0, "")


async def test_included_by_path_it_is_the_same(world: World, tmp_path: Path) -> None:
    def written(config: Config) -> str:
        own = config.envoy.model_copy(update={"include_dir": tmp_path})
        write(config.model_copy(update={"envoy": own}), tmp_path)
        document = yaml.safe_load((tmp_path / "include.yaml").read_text())
        document["layered_runtime"] = {"layers": [{"name": "static", "static_layer": SHUT}]}
        return yaml.safe_dump(document)

    envoy = await world(SETTINGS, write=written)

    assert (await envoy.post(CHAT, BODY, x_tenant_id="marketing"))[0] == 200
    assert envoy.processor.requests == []
    assert (await envoy.post(CHAT, BODY, x_tenant_id="pay"))[0] == 200
    assert envoy.processor.kinds == ["request_body", "response_headers"]


async def test_the_first_stage_holds_before_anybody_says_so(world: World) -> None:
    settings = SETTINGS.replace("{first: null}", "{first: 100, through: 10}")
    envoy = await world(settings, write=shut(**{"tidegate.first": 100}))
    answers = await asyncio.gather(
        *(envoy.post(CHAT, BODY, x_tenant_id="marketing") for _ in range(100)),
        *(envoy.post(CHAT, BODY, x_tenant_id=each) for each in ("pay", "service") * 20),
    )
    refused = [body for _, body in answers if b'"reason":"flood"' in body]
    assert 40 <= len(refused) <= 80  # of 100 at once, those of a fifth of a second pass
    assert len(envoy.engine.seen) == 140 - len(refused)


async def test_envoy_counts_exactly(world: World) -> None:
    envoy = await world(SETTINGS, write=shut(**SHUT))
    for number in range(7):
        await envoy.post(CHAT, BODY if number % 2 else STREAM, x_tenant_id="marketing")
    page = f"{envoy.admin}/stats/prometheus?filter=^tidegate_valve[.]"
    async with envoy.client.get(page) as response:
        counts = read(await response.text())
    assert counts == {("tiny", "P2", Reason.KV_WATERMARK): 7}
