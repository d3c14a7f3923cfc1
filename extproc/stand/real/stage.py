"""The stand of one controller: engines, Tidegate and Envoy, set up for it.

Rules this module keeps:

* Every controller meets the same Envoy, the same filter and the same engines; what differs is what
  Tidegate is told.
* ``none`` is shadow mode, in which Tidegate decides and does not act, before engines that serve first
  come, first served. ``watermark`` is a Tidegate that knows neither how large the caches are nor
  may let anybody wait: what is left of it are the plain rules on scraped ratios.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from extproc.sim.drill.setting import Setting
from extproc.sim.emulator.faults import MetricsFault
from extproc.sim.engine_config import EngineConfig
from extproc.stand.plan import EMULATED_MODEL, Plan, make_plan, tidegate
from extproc.stand.real.calls import TENANT_HEADER
from extproc.stand.up import running, served_model

NONE, WATERMARK, OURS = "none", "watermark", "tidegate"
CONTROLLERS = (NONE, WATERMARK, OURS)
_NO_LIMIT = 3600.0


def plan_for(
    controller: str, setting: Setting, directory: Path, engines: tuple[str, ...] = ()
) -> Plan:
    """Return what runs; as many emulated engines as the setting has where none is given.

    Raises:
        ValueError: there is no such controller for these engines.
    """
    if controller not in CONTROLLERS or (engines and controller == WATERMARK):
        known = CONTROLLERS if not engines else (NONE, OURS)
        raise ValueError(f"there is no controller {controller} here: use {', '.join(known)}")
    file = directory / "drill.yaml"
    file.write_text(yaml.safe_dump(_configuration(controller, setting)), encoding="utf-8")
    return make_plan(
        directory,
        port=0,
        engines=engines,
        config=file,
        emulate=setting.endpoints,
        engine_options=_engine_options(controller, setting.engine),
    )


@asynccontextmanager
async def performed(plan: Plan, controller: str) -> AsyncIterator[str]:
    """Run the stand; the block is given the name of the model."""
    async with running(plan):
        if controller == NONE:
            await _shadow(plan)
        if plan.emulated:
            yield EMULATED_MODEL
            return
        async with aiohttp.ClientSession() as session:
            yield await served_model(session, plan.engines[0])


def _configuration(controller: str, setting: Setting) -> dict[str, Any]:
    classes = setting.config.model_dump(mode="json", by_alias=True, include={"classes"})["classes"]
    pick = setting.pick
    if controller == WATERMARK:
        pick = False
        for each in classes.values():
            each |= {"max_wait": 0.0, "prefill_wait": _NO_LIMIT, "evictable": False}
    names = list(classes)
    return {
        "identity": {"sources": [{"header": {"name": TENANT_HEADER, "trusted": True}}]},
        "classes": classes,
        "tenants": {
            name: {"class": names[audience.rank]}
            for audience in setting.audiences()
            for name, _ in audience.tenants
        },
        "pools": {
            "*": {
                "endpoints": {"static": ["127.0.0.1:1"]},  # the stand puts its own here
                "max_concurrency": setting.max_concurrency,
                "scheduling_policy": "fcfs" if controller == NONE else "priority",
                "balance": "pick" if pick else "envoy",
                "scrape": {
                    "interval": setting.scrape_interval,
                    "stale_after": setting.stale_after,
                },
            }
        },
    }


def _engine_options(controller: str, engine: EngineConfig) -> tuple[str, ...]:
    options = {
        "--blocks": engine.num_gpu_blocks,
        "--block-size": engine.block_size,
        "--max-num-seqs": engine.max_num_seqs,
        "--max-num-batched-tokens": engine.max_num_batched_tokens,
        "--max-model-len": engine.longest,
        "--scheduling-policy": "fcfs" if controller == NONE else "priority",
    }
    if controller == WATERMARK:
        options["--faults"] = f'{{"metrics": "{MetricsFault.UNSIZED}"}}'
    return tuple(str(each) for pair in options.items() for each in pair)


async def _shadow(plan: Plan) -> None:
    """Let Tidegate decide and not act."""
    process = await asyncio.create_subprocess_exec(
        *tidegate(), "mode", "set", "shadow", "--reason", "drill",
        env={
            **os.environ,
            "TIDEGATE_CONTROL": str(plan.config.listen.control),
            "TIDEGATE_TOKEN_FILE": str(plan.token_file),
        },
        stdout=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    if await process.wait():
        raise RuntimeError("Tidegate could not be put into shadow mode")
