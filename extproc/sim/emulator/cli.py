"""The ``emulate`` command: an emulated engine as a process of its own."""

from __future__ import annotations

import asyncio
import json
import signal
from contextlib import suppress
from typing import Annotated

import typer
import uvloop

from extproc.sim.emulator import EmulatorOptions, serve
from extproc.sim.emulator.faults import Faults
from extproc.sim.emulator.replies import OutputLength
from extproc.sim.engine_config import EngineConfig, Policy, StepCost

_COST = StepCost()
_ENGINE = EngineConfig()
_OPTIONS = EmulatorOptions()

CANNOT_LISTEN = 1
BAD_OPTION = 2


def emulate(
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free port")] = 8000,
    host: Annotated[str, typer.Option(help="address to listen on")] = _OPTIONS.host,
    model: Annotated[str, typer.Option(help="name of the model")] = _OPTIONS.model,
    blocks: Annotated[int, typer.Option(min=2, help="KV blocks")] = _ENGINE.num_gpu_blocks,
    block_size: Annotated[int, typer.Option(min=1, help="tokens per block")] = _ENGINE.block_size,
    max_model_len: Annotated[
        int | None, typer.Option(help="tokens of a sequence; default: what the blocks hold")
    ] = _ENGINE.max_model_len,
    max_num_seqs: Annotated[
        int, typer.Option(min=1, help="sequences that run at a time")
    ] = _ENGINE.max_num_seqs,
    max_num_batched_tokens: Annotated[
        int, typer.Option(min=1, help="tokens of one step")
    ] = _ENGINE.max_num_batched_tokens,
    max_num_queued_reqs: Annotated[
        int | None, typer.Option(min=0, help="unfinished requests before 503; default: no bound")
    ] = _ENGINE.max_num_queued_reqs,
    scheduling_policy: Annotated[
        Policy, typer.Option(help="order of the waiting queue")
    ] = _OPTIONS.engine.policy,
    step_seconds: Annotated[float, typer.Option(min=0, help="of every step")] = _COST.base,
    prefill_seconds: Annotated[float, typer.Option(min=0, help="per prompt token")] = _COST.prefill,
    decode_seconds: Annotated[float, typer.Option(min=0, help="per sequence")] = _COST.decode,
    output_median: Annotated[
        float, typer.Option(min=1, help="median of the tokens generated")
    ] = _OPTIONS.output.median,
    output_sigma: Annotated[
        float, typer.Option(min=0, help="spread of that (of its logarithm)")
    ] = _OPTIONS.output.sigma,
    seed: Annotated[int, typer.Option(help="what all that is random starts from")] = _OPTIONS.seed,
    faults: Annotated[
        str, typer.Option(help="what goes wrong, as JSON, as POST /_emulator/faults takes it")
    ] = "{}",
) -> None:
    """Emulate a vLLM server: its endpoints, errors and metrics, with filler for text."""
    try:
        engine = EngineConfig(
            num_gpu_blocks=blocks,
            block_size=block_size,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_model_len=max_model_len,
            policy=scheduling_policy,
            max_num_queued_reqs=max_num_queued_reqs,
            cost=StepCost(step_seconds, prefill_seconds, decode_seconds),
        )
        wrong = Faults().changed(json.loads(faults))
    except ValueError as error:
        typer.echo(f"tidegate emulate: {error}", err=True)
        raise typer.Exit(BAD_OPTION) from error
    options = EmulatorOptions(
        host=host,
        port=port,
        model=model,
        engine=engine,
        output=OutputLength(output_median, output_sigma),
        seed=seed,
        faults=wrong,
    )
    try:
        uvloop.run(_until_signal(options))
    except OSError as error:
        typer.echo(f"tidegate emulate: cannot listen on {host}:{port}: {error.strerror}", err=True)
        raise typer.Exit(CANNOT_LISTEN) from error


async def _until_signal(options: EmulatorOptions) -> None:
    """Serve until SIGINT or SIGTERM."""

    def ready(port: int) -> None:
        shown = f"[{options.host}]" if ":" in options.host else options.host
        typer.echo(f"http://{shown}:{port}")

    serving = asyncio.create_task(serve(options, ready=ready))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, serving.cancel)
    with suppress(asyncio.CancelledError):
        await serving
