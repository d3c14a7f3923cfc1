"""Plays a drill in real time, one controller after the other, and the same calls in virtual time."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from extproc.sim.drill.lengths import Mix
from extproc.sim.drill.runs import Run, calls_of, world_of
from extproc.sim.drill.setting import Setting
from extproc.sim.drill.workload import Call
from extproc.sim.loadgen.http_client import Client
from extproc.sim.loadgen.precise_loop import precise_loop
from extproc.stand.real.calls import Writer
from extproc.stand.real.load import Seen, Sender
from extproc.stand.real.measures import Measures, measure
from extproc.stand.real.stage import performed, plan_for

CONNECTIONS = 64
"""Opened beforehand: no call waits for the first ones."""


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """What is played.

    Attributes:
        setting: engines, classes, and how long; warm-up and tail are played as well.
        mix: what calls look like.
        rate: calls per second.
        seed: of the calls.
        engines: ``host:port`` of running vLLM servers; none: emulated ones.
    """

    setting: Setting
    mix: Mix
    rate: float
    seed: int = 1
    engines: tuple[str, ...] = field(default=())

    def play(self, controllers: Sequence[str], tell: Callable[[str], None]) -> dict[str, Measures]:
        """Return what each controller made of the same calls, in real time.

        Raises:
            ValueError: there is no such controller.
            EnvoyNotFoundError, ChildEndedError, NotReadyError: a stand could not start.
        """
        measured: dict[str, Measures] = {}
        for controller in controllers:
            tell(controller)
            with (
                tempfile.TemporaryDirectory(prefix="tidegate-") as directory,
                asyncio.Runner(loop_factory=precise_loop) as runner,
            ):
                every = runner.run(self._play(controller, Path(directory)))
            measured[controller] = measure(every, self.setting)
        return measured

    def model(self, controllers: Sequence[str]) -> dict[str, Measures]:
        """Return what each controller makes of the same calls in virtual time."""
        return {each: self._model(each) for each in controllers}

    def _calls(self) -> list[Call]:
        return list(calls_of(self._run("none")))

    def _run(self, controller: str) -> Run:
        return Run(self.setting, controller, self.mix, self.rate, seed=self.seed)

    async def _play(self, controller: str, directory: Path) -> list[Seen]:
        plan = plan_for(controller, self.setting, directory, self.engines)
        async with (
            performed(plan, controller) as model,
            Client(f"http://{plan.envoy}", clock=time.monotonic) as client,
        ):
            await client.connect(CONNECTIONS)
            writer = Writer(model, emulated=not self.engines, seed=self.seed)
            sender = Sender(client, writer, self.setting)
            patience = max(terms.first_token for terms in self.setting.terms)
            return await sender.play(self._calls(), patience=patience)

    def _model(self, controller: str) -> Measures:
        records = world_of(self._run(controller)).run().records
        return measure([Seen(each) for each in records], self.setting, virtual=True)
