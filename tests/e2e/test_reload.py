"""SIGHUP: a changed configuration is in force while calls go on, a wrong one is not."""

from __future__ import annotations

import asyncio
import json
import signal
from typing import Any

import httpx
import pytest
import yaml

from tests.e2e.conftest import Stand

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]

CHAT = {
    "model": "qwen", "messages": [{"role": "user", "content": "what is in force"}],
    "max_tokens": 4, "ignore_eos": True,
}  # fmt: skip
STREAM = {**CHAT, "max_tokens": 100, "stream": True}


async def reload(stand: Stand, marketing: str, result: str = "taken_over") -> None:
    """Write another class into the file, send SIGHUP, and wait until it is told what came of that."""
    file = stand.plan.directory / "tidegate.yaml"
    settings = yaml.safe_load(file.read_text())
    settings["tenants"]["marketing"]["class"] = marketing
    file.write_text(yaml.safe_dump(settings, sort_keys=False))
    before = (await stand.metrics()).sum("config_reloads_total", result=result)
    stand.signal("tidegate", signal.SIGHUP)

    async def told() -> bool:
        return (await stand.metrics()).sum("config_reloads_total", result=result) == before + 1

    await stand.eventually(told, f"the reload is {result}")


async def class_of(stand: Stand, tenant: str) -> str:
    reply = await stand.post(CHAT, x_tenant_id=tenant)
    assert reply.status_code == 200
    return str(reply.headers["x-tidegate-class"])


async def test_it_is_taken_over_under_load_and_no_call_notices(stand_with: Any) -> None:
    stand = await stand_with()
    loading, replies = True, list[httpx.Response]()

    async def load() -> None:
        while loading:
            replies.append(await stand.post(CHAT, x_tenant_id="pay"))

    async with asyncio.TaskGroup() as tasks:
        for _ in range(4):
            tasks.create_task(load())
        async with stand.streaming(STREAM, "service") as received:
            assert await class_of(stand, "marketing") == "P2"
            for name in ("P1", "P2", "P0", "P1", "P2"):
                await reload(stand, name)
                assert await class_of(stand, "marketing") == name
            await reload(stand, "P7", "refused")
            assert await class_of(stand, "marketing") == "P2"
            assert (await stand.rest(received)).endswith(b"data: [DONE]\n\n")
        loading = False

    assert len(replies) > 20
    assert {each.status_code for each in replies} == {200}
    assert {each.headers["x-tidegate-class"] for each in replies} == {"P0"}
    await stand.settled()


async def test_a_wrong_one_is_told_with_path_and_reason_and_the_old_one_stays(
    stand_with: Any,
) -> None:
    stand = await stand_with()
    await reload(stand, "P7", "refused")

    assert await class_of(stand, "marketing") == "P2"
    assert (await stand.metrics()).of("config_as_written") == 0
    lines = (stand.plan.directory / "tidegate.log").read_text().splitlines()
    told = [line for line in lines if "the configuration stays as it is" in line]
    problem = json.loads(told[-1])["problem"]
    assert problem == "line 12: tenants.marketing.class: there is no class P7"

    await reload(stand, "P1")

    assert await class_of(stand, "marketing") == "P1"
    assert (await stand.metrics()).of("config_as_written") == 1
