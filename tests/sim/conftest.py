"""An emulated engine for each test, small and fast."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import pytest

from extproc.sim.emulator import Emulator, EmulatorOptions
from extproc.sim.emulator.faults import Faults
from extproc.sim.engine_config import EngineConfig, Policy, StepCost

Start = Callable[..., Awaitable[Emulator]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Start an emulator of the model ``tiny``; keywords change the engine or the options."""
    async with AsyncExitStack() as stack:

        async def start_one(
            *,
            step: float = 0.001,
            faults: Faults | None = None,
            request_id_headers: bool = False,
            **engine: Any,
        ) -> Emulator:
            sizes: dict[str, Any] = {
                "num_gpu_blocks": 128,
                "block_size": 32,
                "max_num_seqs": 8,
                "max_model_len": 2048,
                "policy": Policy.PRIORITY,
                "cost": StepCost(step, 0.0, 0.0),
            }
            options = EmulatorOptions(
                model="tiny",
                engine=EngineConfig(**(sizes | engine)),
                faults=faults or Faults(),
                request_id_headers=request_id_headers,
            )
            return await stack.enter_async_context(Emulator(options))

        yield start_one


@pytest.fixture
async def emulator(start: Start) -> Emulator:
    """One emulator as it comes."""
    return await start()


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    """An HTTP client."""
    async with aiohttp.ClientSession() as session:
        yield session
