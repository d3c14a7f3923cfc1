"""A canary in prompts, keys and headers sings nowhere: not in logs, metrics, the audit or any file."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import httpx
import pytest
from grpc import aio

from extproc.control.client import Access, connect
from extproc.control.pb import decisions_pb2, modes_pb2, state_pb2
from extproc.control.pb.decisions_pb2_grpc import DecisionServiceStub
from extproc.control.pb.modes_pb2_grpc import ModeServiceStub
from extproc.control.pb.state_pb2_grpc import StateServiceStub

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]

CANARY = "canary-5f1e77"
KEY = f"sk-{CANARY}"
PROMPT = f"my password is {CANARY}"
CHAT = {"model": "qwen", "max_tokens": 4, "messages": [{"role": "user", "content": PROMPT}]}
SONGS = (
    CANARY.encode(),
    base64.b64encode(CANARY.encode())[:-2],
    CANARY.replace("-", "%2D").encode(),
)
CONFIG = """\
identity: {{sources: [{{api_key: {{file: {keys}}}}}, {{header: {{name: x-tenant-id, trusted: true}}}}]}}
tenants:
  pay: {{class: P0, plan: gold}}
  marketing: {{class: P2, plan: gold}}
  anonymous: {{class: P2}}
plans: {{gold: {{requests_per_minute: 600, quota: {{tokens: 100000}}}}}}
agents: {{}}
breaker: {{}}
tasks: {{extract_json: {{stop_on: complete_json}}}}
"""


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The key file, for a Tidegate that logs whatever it can."""
    monkeypatch.setenv("TIDEGATE_LOG_LEVEL", "debug")
    file = tmp_path / "keys.yaml"
    file.write_text(f"{hashlib.sha256(KEY.encode()).hexdigest()}: pay\n", encoding="utf-8")
    return file


async def sing(stand: Any) -> list[int]:
    """Send the canary along every way there is; return what the clients got."""
    secret = {"authorization": f"Bearer {KEY}", "cookie": f"session={CANARY}", "x-secret": CANARY}
    bearer = dict(secret)
    stranger = secret | {"authorization": f"Bearer wrong-{CANARY}", "x-api-key": CANARY}
    as_marketing = {"x-tenant-id": "marketing", "x-task-type": "extract_json", "x-secret": CANARY}
    tool = {"type": "function", "function": {"name": "f", "description": PROMPT, "parameters": {}}}
    long = CHAT | {"messages": [{"role": "user", "content": f"{PROMPT} " * 4000}]}
    raw = json.dumps(CHAT).encode()
    calls: list[tuple[str, Any, dict[str, str]]] = [
        ("/v1/chat/completions", CHAT, bearer),
        ("/v1/chat/completions", CHAT | {"stream": True}, bearer),
        ("/v1/chat/completions", CHAT | {"stream": True}, as_marketing),
        ("/v1/chat/completions", CHAT | {"user": CANARY, "tools": [tool]}, stranger),
        ("/v1/chat/completions", CHAT | {"model": KEY, "stop": [CANARY]}, stranger),
        ("/v1/chat/completions", long, bearer),
        (f"/v1/chat/completions?key={CANARY}", CHAT, bearer),
        ("/v1/completions", {"model": "qwen", "prompt": PROMPT, "max_tokens": 2}, bearer),
        ("/v1/responses", {"model": "qwen", "input": PROMPT, "max_output_tokens": 2}, bearer),
        ("/v1/responses", {"model": "qwen", "input": PROMPT, "background": True}, bearer),
        ("/v1/messages", CHAT, stranger),
        ("/v1/embeddings", {"model": "qwen", "input": PROMPT}, bearer),
        ("/v1/chat/completions", f'{{"messages": "{PROMPT}'.encode(), bearer),
        ("/v1/chat/completions", f'{{"{CANARY}": NaN, "n": "{CANARY}"}}'.encode(), bearer),
        ("/v1/chat/completions", gzip.compress(raw), bearer | {"content-encoding": "gzip"}),
        ("/v1/chat/completions", raw, bearer | {"content-encoding": "gzip"}),
        ("/v1/chat/completions", CHAT, bearer | {"x-agent-run-id": "r", "x-agent-task-id": "1"}),
        (f"/v1/{CANARY}", CHAT, bearer),
    ]
    statuses = []
    for path, body, headers in calls:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        reply = await stand.http.post(
            stand.url + path,
            content=content,
            headers={"content-type": "application/json", **headers},
        )
        statuses.append(reply.status_code)
    odd = httpx.Headers([(b"x-tenant-id", b"\xff" + CANARY.encode())])
    reply = await stand.http.post(stand.url + "/v1/chat/completions", content=raw, headers=odd)
    return [*statuses, reply.status_code]


async def operate(stand: Any) -> bytes:
    """Use the control API, also with the canary for a token; return what it told."""
    told: list[bytes] = []
    address = stand.plan.config.listen.control
    async with connect(Access(address, f"token-{CANARY}")) as channel:
        with pytest.raises(aio.AioRpcError) as refused:
            await StateServiceStub(channel).GetState(state_pb2.GetStateRequest())
        told.append(str(refused.value).encode())
    async with connect(Access(address, stand.plan.token)) as channel:
        modes, decisions = ModeServiceStub(channel), DecisionServiceStub(channel)
        for mode in (modes_pb2.MODE_PROTECT, modes_pb2.MODE_NORMAL):
            await modes.SetMode(modes_pb2.SetModeRequest(mode=mode, reason="test"))
        state = await StateServiceStub(channel).GetState(state_pb2.GetStateRequest())
        listed = await decisions.ListDecisions(decisions_pb2.ListDecisionsRequest())
        assert len(listed.decisions) >= 10
        for each in listed.decisions:
            request = decisions_pb2.ExplainDecisionRequest(id=each.id)
            told.append((await decisions.ExplainDecision(request)).SerializeToString())
        summed = await decisions.SummarizeDecisions(decisions_pb2.SummarizeDecisionsRequest())
        told += [each.SerializeToString() for each in (state, listed, summed)]
    return b"\n".join(told)


async def test_a_canary_sings_nowhere(stand_with: Any, keys: Path) -> None:
    stand = await stand_with(CONFIG.format(keys=keys))
    statuses = await sing(stand)
    await stand.show_usage(0.99)
    shed = await sing(stand)
    assert {200, 400} <= set(statuses)
    assert {200, 400} <= set(shed)

    async with stand.streaming(CHAT | {"stream": True, "max_tokens": 500}, "pay"):
        pass  # the client leaves in the middle
    told = await operate(stand)
    page = (await stand.http.get(stand.plan.metrics_url)).content
    os.killpg(stand.children["tidegate"].process.pid, 15)
    await stand.children["tidegate"].process.wait()

    files = {
        str(file.relative_to(stand.plan.directory)): file.read_bytes()
        for file in sorted(stand.plan.directory.rglob("*"))
        if file.is_file()
    }
    assert {"tidegate.log", "decisions.jsonl", "control/audit.jsonl"} <= files.keys()
    assert b'"level": "debug"' in files["tidegate.log"]
    assert b"mode.set" in files["control/audit.jsonl"]
    heard = {
        name: song
        for name, content in {**files, "metrics": page, "control API": told}.items()
        for song in SONGS
        if song in content
    }
    assert heard == {}
